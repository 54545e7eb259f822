"""Training that reuses rows: what a row is, that it resumes, and what it must not change."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from itertools import islice

import pytest
import torch

import tgflow as tg
from helpers.devices import apart, opened, place_of
from helpers.effort import cases
from helpers.emulated_training import emulated_pages  # noqa: F401
from helpers.made_streams import made_events, small_tgat, small_tgn
from helpers.plan_reference import assert_same_batch
from helpers.records import untimed
from helpers.reuse_training import (
    EVENTS,
    REUSE,
    Pass,
    check_resumes_after_an_epoch,
    parameters,
    recent_tgat,
    rows_at,
    trainer_of,
)
from tgflow.graph import TemporalGraph
from tgflow.models import TGAT
from tgflow.plan import reuse as reuse_plan
from tgflow.plan.reuse import ReuseProgress
from tgflow.tables import FeatureTable
from tgflow.train.observe import Callback
from tgflow.train.reuse import reuse_of
from tgflow.train.step import TrainStep


def test_without_staleness_training_is_what_it_is_without_reuse():
    settings = {"graph": TemporalGraph.from_events(EVENTS[:160]), "epochs": 1}
    off = trainer_of(**settings)
    other = trainer_of(reuse=tg.train.Reuse(staleness=0, refresh=0.7), **settings)
    assert untimed(off.fit()) == untimed(other.fit())
    assert torch.equal(parameters(off.model), parameters(other.model))
    assert other.reuse is None


@pytest.mark.parametrize("layers", cases([2, 3], [2]))
def test_where_all_rows_are_refreshed_gradients_are_those_without_reuse(layers):
    run = Pass(recent_tgat(dropout=0.0, layers=layers), reuse=replace(REUSE, refresh=1.0))
    for batch in islice(run.batches(), 8):
        plain = copy.deepcopy(run.model)
        TrainStep(plain, seed=1, learning_rate=1e-2).learn(run.plan.batch(0, batch.index))
        run.reuse.learn(run.learner, batch)
        for found, expected in zip(run.model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-3, atol=1e-6)
    assert run.reuse.stats.refreshed > 0
    assert run.reuse.stats.reused == 0


@pytest.mark.parametrize("layers", cases([2, 3], [3]))
def test_a_row_that_is_reused_is_that_of_the_parameters_it_was_computed_with(layers):
    run = Pass(recent_tgat(dropout=0.0, layers=layers), reuse=replace(REUSE, refresh=0.1))
    models, num_compared = [], 0
    ring = run.reuse._rings[-1]  # of the lowest layer, whose rows read no other rows
    lowest = run.model.encoder.layers[-1]
    for batch in islice(run.batches(), 10):
        models.append(copy.deepcopy(run.model))
        block = batch.blocks[-1]
        made = ring.number[block.reused.slot]
        taken = ring.rows[block.reused.slot].clone()
        keys = ring.nodes[block.reused.slot], ring.t[block.reused.slot]
        for number in made.unique().tolist():
            assert batch.index - number <= REUSE.staleness
            at = made == number
            past = models[number].encoder.layers[-1]
            rows = rows_at(past, run.plan, *(key[at] for key in keys))
            torch.testing.assert_close(taken[at], rows, rtol=1e-5, atol=1e-6)
            num_compared += int(at.sum())
        run.reuse.learn(run.learner, batch)
    assert num_compared > 50
    assert not lowest._forward_hooks


def test_no_gradient_reaches_a_row_that_is_reused_and_a_refreshed_one_weighs_more():
    run = Pass(recent_tgat(dropout=0.0))
    run.learn(stop=6)
    batch = next(run.batches(6))
    reused, ring = batch.blocks[1].reused, run.reuse._rings[0]
    size = len(batch.blocks[1].target)
    computed = torch.randn(size, 8, requires_grad=True)
    rows = ring.completed(computed, reused)
    assert len(rows) == size + len(reused.slot)
    factors = torch.randn(rows.shape)
    (rows * factors).sum().backward()
    assert torch.equal(computed.grad, factors[:size] * reused.weight.unsqueeze(1))
    assert sorted(set(reused.weight.tolist())) == pytest.approx([1.0, 1 / 0.3])
    assert torch.equal(ring.rows[reused.stored], computed[: len(reused.stored)].detach())


@pytest.mark.parametrize("killed", cases([(1, 0), (5, 2), (9, 0), (13, 1)], [(5, 2)]))
def test_a_run_that_is_killed_resumes_with_the_same_bits(killed):
    stop, num_threads = killed
    whole = Pass()
    expected = whole.learn()
    first = Pass(num_threads=num_threads)
    first.learn(stop=stop)
    second = Pass(num_threads=2)
    second.load(first.saved())
    for batch, other in zip(second.learn(stop), expected[stop:], strict=True):
        assert_same_batch(batch, other)
    assert torch.equal(parameters(whole.model), parameters(second.model))
    assert whole.reuse.stats == second.reuse.stats


def test_a_trainer_goes_on_after_an_epoch_with_the_same_bits_and_counts():
    first, second, _ = check_resumes_after_an_epoch(REUSE, num_events=160)
    assert first.reuse.stats == second.reuse.stats


def test_what_is_saved_is_the_same_whatever_was_prepared_ahead():
    ahead, inline = Pass(num_threads=2), Pass()
    ahead.learn(stop=7)
    inline.learn(stop=7)
    pairs = zip(*(run.saved().get("reuse").items() for run in (ahead, inline)), strict=True)
    for (name, one), (_, other) in pairs:
        assert torch.equal(one, other), name


def test_epochs_share_no_rows_and_evaluation_computes_all():
    trainer = trainer_of(reuse=REUSE)
    seen = []
    predict = trainer._learner.predict
    trainer._learner.predict = lambda batch: (seen.append(batch), predict(batch))[1]
    first = [next(iter(trainer._training_batches(epoch))) for epoch in (0, 1)]
    assert all(not len(batch.blocks[1].reused.slot) for batch in first)
    result = trainer.fit()
    assert seen
    assert all(block.reused is None for batch in seen for block in batch.blocks)
    stats = trainer.reuse.stats
    assert 0 < stats.reused < stats.asked
    assert stats.refreshed > 0
    assert 0 < stats.largest_lag <= REUSE.staleness
    assert stats.saved == 3 * stats.reused  # neighbors of each
    assert result["reuse.reused"] == stats.reused
    assert result["reuse.is_off"] is False


@pytest.mark.slow
def test_it_learns_with_rows_of_old_parameters():
    settings = {"epochs": 6, "batch_size": 20}
    events = made_events(600, noise=0.05)
    plain, reusing = (
        trainer_of(graph=TemporalGraph.from_events(events), reuse=reuse, **settings).fit()
        for reuse in (tg.train.Reuse(), tg.train.Reuse(staleness=8))
    )
    assert reusing["test.ap"] > plain["test.ap"] - 0.05
    assert plain["test.ap"] > 0.6


def test_a_budget_is_kept():
    budget = 16_384
    run = Pass(reuse=replace(REUSE, budget=budget))
    run.learn()
    (ring,), (held,) = run.reuse._rings, [run.reuse._hop(0)._map]
    assert len(held) > 0.5 * ring.capacity
    assert ring.nbytes + held.bytes <= budget


class Losses(Callback):
    """The loss of each batch."""

    def __init__(self):
        self.losses = []

    def on_batch(self, record):
        if record.loss is not None:
            self.losses.append(record.loss)


@pytest.mark.slow
@pytest.mark.usefixtures("emulated_pages")
@pytest.mark.parametrize("device", [apart])
def test_a_device_learns_what_the_cpu_learns(device):
    settings = {"epochs": 1, "reuse": replace(REUSE, refresh=0.5), "batch_size": 20}
    found = []
    for place in ("cpu", place_of(device)):
        heard = Losses()
        graph = TemporalGraph.from_events(EVENTS[:120])
        model = recent_tgat(dropout=0.0)
        trainer = trainer_of(model, graph, device=place, observer=heard, **settings)
        trainer.fit()
        found.append((heard.losses, trainer.reuse.stats))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-3)
    assert found[0][1] == found[1][1]


@pytest.mark.slow
@pytest.mark.usefixtures("emulated_pages")
@pytest.mark.parametrize("device", [apart])
def test_a_device_with_the_graph_learns_what_the_cpu_learns(device):
    here = Pass(recent_tgat(dropout=0.0))
    there = Pass(recent_tgat(dropout=0.0).to(place_of(device)), device=opened(device))
    for batch, other in zip(here.batches(), there.batches(), strict=True):
        expected = here.reuse.learn(here.learner, batch).loss
        found = there.reuse.learn(there.learner, other).loss
        assert float(found) == pytest.approx(float(expected), rel=1e-3)
    assert here.reuse.stats == there.reuse.stats


class Whole(TGAT):
    """A model that does not go by its layers alone."""

    def forward(self, batch):
        return super().forward(batch)


class Narrow(torch.nn.Module):
    """A layer that does not say how wide its rows are."""


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (small_tgn, {}, "TGN keeps a state that moves on with each event"),
        (lambda: recent_tgat(layers=1), {}, "TGAT names 1 in TemporalModel.embedding_layers"),
        (Whole, {}, "Whole defines a forward of its own"),
        (lambda: small_tgat(strategy="uniform"), {}, "uniform draws for a node depends"),
        (recent_tgat, {"strategy": "uniform"}, "uniform draws for a node depends"),
        (recent_tgat, {"slices": 2}, r"leave out replay and slices \(slices=1\)"),
        (
            recent_tgat,
            {"reuse": tg.train.Reuse(staleness=1, budget="100B")},
            "no room for a row of 8",
        ),
    ],
)
def test_models_and_settings_that_cannot_reuse_rows_are_refused(model, settings, message):
    with pytest.raises(ValueError, match=message):
        trainer_of(model(), **{"reuse": REUSE} | settings)


def test_ranks_are_refused():
    trainer = trainer_of(recent_tgat())
    with pytest.raises(ValueError, match=r"for one process, .* got 2 ranks: leave reuse out"):
        reuse_of(REUSE, trainer._learner, trainer._train_plan, num_ranks=2)


def test_each_epoch_counts_afresh_what_recurs():
    """Few batches at an epoch's start, which find an empty ring, do not switch reuse off."""
    num = reuse_plan.WINDOW - 1
    progress = ReuseProgress()
    for _ in range(num):
        progress = progress.counted(asked=10, reused=5, refreshed=0, k=1, lag=1)
    progress = progress.restarted().counted(asked=10, reused=0, refreshed=0, k=1, lag=0)
    assert not progress.is_off
    for _ in range(num):
        progress = progress.counted(asked=10, reused=0, refreshed=0, k=1, lag=0)
    assert progress.is_off
    assert not progress.restarted().is_off


def test_a_layer_must_say_how_wide_its_rows_are():
    model = recent_tgat()
    model.embedding_layers = lambda: (model.encoder.layers[0], Narrow())
    with pytest.raises(ValueError, match="how wide the rows of Narrow are: give it dim"):
        trainer_of(model, reuse=REUSE)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"staleness": -1}, "staleness must be at least 0, got -1"),
        ({"refresh": 0.0}, "refresh must be more than 0 and at most 1, got 0.0"),
        ({"refresh": 1.5}, "refresh must be more than 0 and at most 1, got 1.5"),
        ({"budget": "many"}, "budget: "),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        tg.train.Reuse(**settings)


def test_a_checkpoint_with_more_rows_than_there_is_room_for_is_refused():
    first = Pass()
    first.learn(stop=8)
    small = Pass(reuse=replace(REUSE, budget=4_096))
    with pytest.raises(ValueError, match="need a larger budget"):
        small.reuse.load(first.saved())


def test_a_model_that_reads_features_of_nodes_reuses_rows_too():
    x = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))
    table = FeatureTable.from_tensor(x)
    graph = TemporalGraph.from_events(EVENTS, node_x=table)
    trainer = trainer_of(recent_tgat(node_x_dim=3), graph, reuse=REUSE, epochs=1)
    assert trainer.fit()["reuse.reused"] > 0
