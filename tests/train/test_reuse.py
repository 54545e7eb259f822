"""Training with row reuse: resume, gradients, limits."""

import copy
from dataclasses import replace
from itertools import islice

import pytest
import torch

import tgflow as tg
from helpers.effort import cases
from helpers.made_streams import made_events, small_tgat, small_tgn
from helpers.plans import assert_same_batch
from tgflow import TGAT, Loader, OfflineConfig, OfflineTrainer, TemporalGraph
from tgflow.checkpoint import Checkpoint
from tgflow.plan import NegativeSampler
from tgflow.train.plans import make_plan
from tgflow.train.reuse import TrainingReuse, reuse_of
from tgflow.train.step import TrainStep
from tgflow.train.trainer_state import load_learner, save_learner

EVENTS = made_events(280)
REUSE = tg.train.Reuse(staleness=4, refresh=0.3)
CONFIG = OfflineConfig(batch_size=20, seed=1, learning_rate=1e-2)


def recent_tgat(**changes):
    """A small TGAT whose rows can be reused."""
    return small_tgat(strategy="recent", **changes)


def trainer_of(model, **changes):
    config = replace(CONFIG, epochs=2, mrr_negatives=5, **changes)
    return OfflineTrainer(model, TemporalGraph.from_events(EVENTS), config)


class Pass:
    """Training on the batches of a plan, some steps at a time."""

    def __init__(self, model=None, num_threads=0, reuse=REUSE):
        self.model = recent_tgat() if model is None else model
        graph = TemporalGraph.from_events(EVENTS)
        self.plan = make_plan(graph, self.model, CONFIG, NegativeSampler(random=1), seed=3)
        self.learner = TrainStep(self.model, CONFIG)
        self.reuse = TrainingReuse(reuse, self.model, self.plan, self.learner.device)
        self.num_threads = num_threads

    def batches(self, begin=0):
        tasks = ((0, index) for index in range(begin, len(self.plan)))
        source, decided = self.reuse.batches(tasks, self.num_threads)
        yield from Loader.of_tasks(source, decided, num_threads=self.num_threads)

    def learn(self, begin=0, stop=None):
        """Learn the batches up to `stop`, and return them."""
        batches, seen = self.batches(begin), []
        for batch in batches:
            self.reuse.learn(self.learner, batch)
            seen.append(batch)
            if batch.index + 1 == stop:
                batches.close()
                break
        return seen

    def saved(self):
        checkpoint = Checkpoint({})
        save_learner(checkpoint, self.learner)
        self.reuse.save(checkpoint)
        return checkpoint


def rows_at(layer, plan, nodes, t):
    """Return the output of a layer without node features for nodes at times."""
    (block,) = tg.sample_hops(plan.graph, nodes, t, plan.draws.fanouts[-1:]).blocks
    x = plan.graph.edge_x.gather(block.eid.reshape(-1).clamp(min=-1))
    rows = torch.arange(x.shape[0]).view(block.eid.shape)
    with torch.no_grad():
        return layer(None, replace(block, edge_row=rows, edge_table=x))


@pytest.mark.parametrize("layers", cases([2, 3], [2]))
def test_refreshing_all_rows_gives_the_gradients_without_reuse(layers):
    run = Pass(recent_tgat(dropout=0.0, layers=layers), reuse=replace(REUSE, refresh=1.0))
    for batch in islice(run.batches(), 8):
        plain = copy.deepcopy(run.model)
        TrainStep(plain, CONFIG).learn(run.plan.batch(0, batch.index))
        run.reuse.learn(run.learner, batch)
        for found, expected in zip(run.model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-3, atol=1e-6)
    assert run.reuse.stats.refreshed > 0
    assert run.reuse.stats.reused == 0


@pytest.mark.parametrize("layers", cases([2, 3], [3]))
def test_reused_row_matches_the_parameters_it_was_computed_with(layers):
    run = Pass(recent_tgat(dropout=0.0, layers=layers), reuse=replace(REUSE, refresh=0.1))
    models, num_compared = [], 0
    ring = run.reuse._rings[-1]  # of the lowest layer, whose rows read no other rows
    for batch in islice(run.batches(), 10):
        models.append(copy.deepcopy(run.model))
        slots = batch.blocks[-1].reused.slot
        made, taken = ring.number[slots], ring.rows[slots].clone()
        keys = ring.nodes[slots], ring.t[slots]
        for number in made.unique().tolist():
            assert batch.index - number <= REUSE.staleness
            at = made == number
            past = models[number].encoder.layers[-1]
            rows = rows_at(past, run.plan, *(key[at] for key in keys))
            torch.testing.assert_close(taken[at], rows, rtol=1e-5, atol=1e-6)
            num_compared += int(at.sum())
        run.reuse.learn(run.learner, batch)
    assert num_compared > 50
    assert not run.model.encoder.layers[-1]._forward_hooks


def test_reused_rows_get_no_gradient_and_refreshed_rows_weigh_more():
    run = Pass(recent_tgat(dropout=0.0))
    run.learn(stop=6)
    reused, ring = next(run.batches(6)).blocks[1].reused, run.reuse._rings[0]
    computed = torch.randn(len(reused.weight), 8, requires_grad=True)
    rows = ring.completed(computed, reused)
    assert len(rows) == len(computed) + len(reused.slot)
    factors = torch.randn(rows.shape)
    (rows * factors).sum().backward()
    assert torch.equal(computed.grad, factors[: len(computed)] * reused.weight.unsqueeze(1))
    assert sorted(set(reused.weight.tolist())) == pytest.approx([1.0, 1 / 0.3])


@pytest.mark.parametrize("killed", cases([(1, 0), (3, 1), (4, 2), (8, 0), (13, 1)], [(4, 2)]))
def test_resume_after_kill_matches_undisturbed_pass(killed):
    stop, num_threads = killed
    whole, first, second = (Pass(num_threads=num) for num in (0, num_threads, 2))
    expected = whole.learn()
    first.learn(stop=stop)
    saved = first.saved()
    load_learner(second.learner, saved)
    second.reuse.load(saved)
    for batch, other in zip(second.learn(stop), expected[stop:], strict=True):
        assert_same_batch(batch, other)
    for one, other in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert second.reuse.stats == whole.reuse.stats


def test_epochs_do_not_share_rows_and_evaluation_computes_all():
    trainer = trainer_of(recent_tgat(), reuse=REUSE)
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


class Whole(TGAT):
    """A model that overrides `forward`."""

    def forward(self, batch):
        return super().forward(batch)


class Narrow(torch.nn.Module):
    """A layer without `dim`."""


def with_a_narrow_layer():
    model = recent_tgat()
    model.embedding_layers = lambda: (model.encoder.layers[0], Narrow())
    return model


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (small_tgn, {}, "TGN has a state that changes with each event"),
        (lambda: recent_tgat(layers=1), {}, "TGAT has 1 in TemporalModel.embedding_layers"),
        (Whole, {}, "Whole overrides forward"),
        (lambda: small_tgat(strategy="uniform"), {}, "uniform draws for a node depends"),
        (recent_tgat, {"strategy": "uniform"}, "uniform draws for a node depends"),
        (recent_tgat, {"slices": 2}, r"leave out replay and slices \(slices=1\)"),
        (with_a_narrow_layer, {}, "the width of the rows of Narrow: give it dim"),
        (recent_tgat, {"reuse": replace(REUSE, budget="100B")}, "no room for a row of 8"),
    ],
)
def test_models_and_settings_that_cannot_reuse_rows_are_refused(model, settings, message):
    with pytest.raises(ValueError, match=message):
        trainer_of(model(), **{"reuse": REUSE} | settings)


def test_settings_out_of_range_and_rows_without_room_are_refused():
    with pytest.raises(ValueError, match=r"refresh must be more than 0 and at most 1, got 1\.5"):
        tg.train.Reuse(refresh=1.5)
    trainer = trainer_of(recent_tgat(), reuse=replace(REUSE, staleness=0))
    assert trainer.reuse is None
    with pytest.raises(ValueError, match=r"for one process, .* got 2 ranks: leave reuse out"):
        reuse_of(REUSE, trainer._learner, trainer._train_plan, num_ranks=2)
    first = Pass()
    first.learn(stop=8)
    small = Pass(reuse=replace(REUSE, budget=4_096))
    with pytest.raises(ValueError, match="need a larger budget"):
        small.reuse.load(first.saved())
