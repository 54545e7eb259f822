"""Rows that threads compute beside the training: what they are, and that no clock decides bits."""

from __future__ import annotations

import copy
import functools
import gc
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tgflow as tg
from helpers.devices import apart, place_of
from helpers.effort import cases, tries
from helpers.emulated_training import emulated_pages  # noqa: F401
from helpers.plan_reference import assert_same_batch
from helpers.reuse_training import (
    EVENTS,
    Pass,
    check_resumes_after_an_epoch,
    parameters,
    recent_tgat,
    rows_at,
    trainer_of,
)
from tgflow.graph import TemporalGraph
from tgflow.tables import FeatureTable
from tgflow.train import producer as rooms
from tgflow.train.reuse import check_host_graph
from tgflow.train.step import TrainStep

AHEAD = tg.train.Reuse(staleness=5, refresh=0.3, producer="cpu")
SIZE = AHEAD.super_batch


class Dead:
    """Threads that never come to it."""

    def submit(self, make: Callable[..., object], *arguments: object) -> Future[object]:
        return Future()

    def shutdown(self, cancel_futures: bool) -> None:
        pass


def ahead(helps: bool = True, model=None, **how) -> Pass:
    run = Pass(model, reuse=how.pop("reuse", AHEAD), **how)
    run.reuse.producer.uses_threads = helps
    return run


def make_units_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "UNIT_ROWS", 7)


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    make_units_small(monkeypatch)


def all_done(run: Pass) -> None:
    """Wait until threads have computed all that they may."""
    job = run.reuse.producer._job
    if job is not None:
        wait([future for future in job._futures if future is not None], timeout=60)


def learned(run: Pass, before: Callable[[Pass], object] = lambda run: None) -> Pass:
    """Learn all batches, and do something before each."""
    for batch in run.batches():
        before(run)
        run.reuse.learn(run.learner, batch)
    run.reuse.close()
    return run


@functools.cache
def computed_by_the_training() -> Pass:
    """What was learned where nobody helped, in small units."""
    with pytest.MonkeyPatch.context() as patch:
        make_units_small(patch)
        return learned(ahead(helps=False))


@pytest.mark.parametrize("layers", cases([2, 3], [2]))
def test_hot_rows_are_those_of_the_parameters_at_the_super_batch_before(layers):
    run = ahead(model=recent_tgat(layers=layers))
    ring, models, num_compared = run.reuse._rings[-1], {}, 0
    for batch in islice(run.batches(), 4 * SIZE):
        record = batch.blocks[-1].reused.record
        models[record.number] = copy.deepcopy(run.model).eval()
        if record.number and record.number % SIZE == 0:
            hot = run.reuse.producer._job.hot
            run.reuse.producer.finish(hot.due)
            layer = models[hot.number].encoder.layers[-1]
            expected = rows_at(layer, run.plan, hot.nodes, hot.t)
            torch.testing.assert_close(ring.rows[hot.slots], expected, rtol=1e-5, atol=1e-6)
            assert (ring.number[hot.slots] == record.number - SIZE).all()
            num_compared += len(hot)
        run.reuse.learn(run.learner, batch)
    assert num_compared > 50
    assert run.reuse.stats.produced == num_compared


@pytest.mark.usefixtures("small_units")
def test_bits_do_not_depend_on_who_computes(monkeypatch):
    alone = computed_by_the_training()
    assert alone.reuse.stats.late == alone.reuse.stats.produced > 0
    fast = learned(ahead(), all_done)
    assert fast.reuse.stats.late == 0
    dead = ahead()
    monkeypatch.setattr(dead.reuse.producer, "_pool", Dead())
    for run in (fast, learned(dead)):
        assert torch.equal(parameters(run.model), parameters(alone.model))
        assert replace(run.reuse.stats, late=0) == replace(alone.reuse.stats, late=0)


@settings(max_examples=tries(30, 2), deadline=None)
@given(data=st.data())
def test_bits_do_not_depend_on_when_rows_are_there(data):
    """Each unit takes as long as it likes, and so does each step."""
    delays = st.sampled_from([0.0, 0.0, 1e-4, 3e-3])
    with pytest.MonkeyPatch.context() as patch:
        make_units_small(patch)
        computed = rooms._Job._made
        drawn = data.draw(st.lists(delays, min_size=50, max_size=50))

        def made(job, unit):
            time.sleep(drawn[(job.hot.number + unit.start) % len(drawn)])
            return computed(job, unit)

        patch.setattr(rooms._Job, "_made", made)
        helped = learned(ahead(), lambda run: time.sleep(drawn[0]))
    assert torch.equal(parameters(helped.model), parameters(computed_by_the_training().model))


def test_where_all_rows_are_refreshed_gradients_are_those_without_reuse():
    run = ahead(model=recent_tgat(dropout=0.0), reuse=replace(AHEAD, refresh=1.0))
    for batch in islice(run.batches(), 8):
        plain = copy.deepcopy(run.model)
        TrainStep(plain, seed=1, learning_rate=1e-2).learn(run.plan.batch(0, batch.index))
        run.reuse.learn(run.learner, batch)
        for found, expected in zip(run.model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-3, atol=1e-6)
    assert run.reuse.stats.refreshed > 0
    assert run.reuse.stats.reused == 0


def test_rows_are_no_older_than_the_staleness():
    run = learned(ahead(reuse=replace(AHEAD, staleness=8)))
    stats = run.reuse.stats
    assert stats.largest_lag <= 8
    assert 0 < stats.produced < stats.reused
    assert stats.saved == 3 * (stats.reused - stats.produced)


@pytest.mark.parametrize("killed", cases([1, SIZE, SIZE + 1, 2 * SIZE, 8, 13], [SIZE, 8]))
def test_a_run_that_is_killed_resumes_with_the_same_bits(killed):
    whole = ahead(helps=False)
    expected = whole.learn()
    first = ahead(num_threads=2)
    first.learn(stop=killed)
    second = ahead(num_threads=1)
    second.load(first.saved())
    for batch, other in zip(second.learn(killed), expected[killed:], strict=True):
        assert_same_batch(batch, other)
    assert torch.equal(parameters(whole.model), parameters(second.model))
    assert replace(second.reuse.stats, late=0) == replace(whole.reuse.stats, late=0)
    for run in (first, second):
        run.reuse.close()


@pytest.mark.slow
def test_a_run_goes_on_as_if_it_had_not_been_saved():
    whole, saved = ahead(helps=False), ahead()
    whole.learn()
    for batch in saved.batches():
        saved.saved()
        saved.reuse.learn(saved.learner, batch)
    assert torch.equal(parameters(whole.model), parameters(saved.model))


def test_a_checkpoint_without_published_parameters_is_refused_within_a_super_batch():
    inline = Pass(reuse=replace(AHEAD, producer="inline"))
    inline.learn(stop=SIZE + 1)
    run = ahead()
    run.load(inline.saved())
    with pytest.raises(ValueError, match=r'go on from it with producer="inline"'):
        run.learn(SIZE + 1)


def test_what_a_thread_fails_with_arrives(monkeypatch):
    computed = rooms._Job._made

    def made(job, unit):
        if job.hot.number == SIZE:
            raise OSError("the disk is gone")
        return computed(job, unit)

    monkeypatch.setattr(rooms._Job, "_made", made)
    run, seen = ahead(), []
    with pytest.raises(OSError, match="the disk is gone"):
        learned(run, lambda run: seen.append(all_done(run)))
    assert len(seen) == 2 * SIZE + 1
    run.reuse.close()


def test_an_early_end_leaves_no_thread_and_no_rows():
    run = ahead()
    batches = run.batches()
    for batch in islice(batches, SIZE + 1):
        run.reuse.learn(run.learner, batch)
    job, threads = run.reuse.producer._job, run.reuse.producer._pool._threads
    batches.close()
    run.reuse.close()
    assert all(future.done() for future in job._futures)
    assert threads
    assert not any(thread.is_alive() for thread in threads)
    assert run.reuse.producer._job is None


def test_threads_end_when_a_step_of_a_training_fails():
    trainer = trainer_of(reuse=AHEAD)
    learn, numbers = trainer._learner.learn, iter(range(100))

    def failing(batch):
        if next(numbers) == SIZE + 1:
            raise OSError("no power")
        return learn(batch)

    trainer._learner.learn = failing
    with pytest.raises(OSError, match="no power"):
        trainer.fit()
    assert next(numbers) == SIZE + 2
    assert trainer.reuse.producer._pool is None


def test_who_has_nothing_to_compute_sleeps():
    run = ahead()
    batches = run.batches()
    run.reuse.learn(run.learner, next(batches))
    all_done(run)
    begin = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - begin < 0.1
    run.reuse.close()


@pytest.mark.slow
def test_nothing_is_kept_of_super_batches_that_are_over():
    run = ahead()
    for number, batch in enumerate(run.batches()):
        run.reuse.learn(run.learner, batch)
        if number % SIZE == 0:
            gc.collect()
            assert sum(isinstance(each, rooms._Job) for each in gc.get_objects()) <= 2
    run.reuse.close()


def test_a_budget_is_kept():
    budget = 16_384
    run = learned(ahead(reuse=replace(AHEAD, budget=budget)))
    (ring,), (held,) = run.reuse._rings, [run.reuse._hop(0)._map]
    assert ring.nbytes + held.bytes <= budget


def test_a_training_repeats_goes_on_after_an_epoch_and_says_what_was_made():
    *_, expected = check_resumes_after_an_epoch(AHEAD, num_events=200)
    assert expected["reuse.produced"] > 0
    assert f"hot ones {SIZE} batches ahead" in expected["protocol_line"]


def test_rows_of_nodes_with_features_are_computed_ahead_too():
    x = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))
    graph = TemporalGraph.from_events(EVENTS, node_x=FeatureTable.from_tensor(x))
    model = recent_tgat(node_x_dim=3)
    trainer = trainer_of(model, graph, reuse=AHEAD, epochs=1)
    assert trainer.fit()["reuse.produced"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("emulated_pages")
@pytest.mark.parametrize("device", [apart])
def test_a_device_takes_rows_that_the_cpu_computes(device):
    here = ahead(model=recent_tgat(dropout=0.0))
    there = ahead(model=recent_tgat(dropout=0.0).to(place_of(device)))
    for batch, other in zip(here.batches(), there.batches(), strict=True):
        expected = here.reuse.learn(here.learner, batch).loss
        found = there.reuse.learn(there.learner, other).loss
        assert float(found) == pytest.approx(float(expected), rel=1e-3)
    assert replace(here.reuse.stats, late=0) == replace(there.reuse.stats, late=0)


def test_a_graph_on_a_gpu_is_refused():
    plan = SimpleNamespace(gpu=object(), graph=SimpleNamespace(device="cuda:0"))
    with pytest.raises(ValueError, match='this one is on cuda:0: set producer="inline"'):
        check_host_graph(plan)


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_staleness_without_super_batches_is_refused(staleness):
    with pytest.raises(ValueError, match="must be at least 3, got"):
        tg.train.Reuse(staleness=staleness, producer="cpu")
