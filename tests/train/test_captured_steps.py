"""Captured and replayed training steps match uncaptured ones."""

import gc
import weakref
from dataclasses import replace
from functools import partial

import pytest
import torch

from helpers.devices import apart, cuda, needs_apart, opened, place_of
from helpers.effort import cases
from helpers.emulator.device import EmulatedDevice
from helpers.live_runs import state_of as state_in_checkpoint
from helpers.made_streams import made_events, pieces, seeded, small_tgat, small_tgn
from helpers.plans import pad, plan_of
from tgflow import ContinualConfig, ContinualTrainer, Loader, OfflineConfig, Plan, TemporalGraph
from tgflow.cuda.device import device_of
from tgflow.graph.events import MICRO_BATCH_END
from tgflow.graph.tables import FeatureTable
from tgflow.plan.padding import BatchShape, shape_of
from tgflow.train import captured
from tgflow.train.captured import CapturedCalls
from tgflow.train.config import ExecutionConfig, TaskConfig
from tgflow.train.step import TrainStep
from tgflow.train.tasks.labels import LabelTask

for_each_place = pytest.mark.parametrize("device", [apart, cuda])


@pytest.fixture(autouse=True)
def _without_threads_of_autograd():
    with torch.autograd.set_multithreading_enabled(False):
        yield


def state_of(learner):
    """Every tensor that a step changes."""
    moments = [x for entry in learner.optimizer.state.values() for x in entry.values()]
    return [*learner.model.parameters(), *learner.model.buffers(), *moments, learner.is_lost]


def graph_there(device):
    """A graph on the device, which prepares its batches."""
    table = FeatureTable(2, placement="device", device=(gpu := opened(device)))
    return TemporalGraph("undirected", edge_x=table, device=gpu)


def graph_here(device):
    """A graph in host memory, whose batches are padded to few sizes on the device."""
    return TemporalGraph("undirected", 2)


def trained(device, make, graph, monkeypatch, *, capture, events=None, **changes):
    replays = []
    monkeypatch.setattr(captured, "WARM_UPS", 1)
    config = ContinualConfig(batch_size=20, learning_rate=1e-2, mrr_negatives=5, **changes)
    trainer = ContinualTrainer(
        make().to(place_of(device)),
        graph(device),
        config,
        execution=ExecutionConfig(capture=capture),
    )
    with monkeypatch.context() as patched:
        call = CapturedCalls.call

        def counted(self, name, *rest, **options):
            result = call(self, name, *rest, **options)
            replays.extend([name] * self.was_replay)
            return result

        patched.setattr(CapturedCalls, "call", counted)
        events = made_events(140) if events is None else events
        records = list(trainer.steps(pieces(events, 64)))
    return trainer, records, replays


@for_each_place
@pytest.mark.parametrize("make", cases([small_tgn, small_tgat], [small_tgn]))
@pytest.mark.parametrize("graph", cases([graph_there, graph_here], [graph_there]))
def test_captured_steps_match_uncaptured_steps(device, make, graph, monkeypatch):
    plain, expected, none = trained(device, make, graph, monkeypatch, capture=False)
    replayed, found, replays = trained(device, make, graph, monkeypatch, capture=True)
    assert not none
    assert ("step" if graph is graph_there else "learn") in replays
    assert [(r.loss, r.metrics) for r in found] == [(r.loss, r.metrics) for r in expected]
    for x, y in zip(state_of(plain._learner), state_of(replayed._learner), strict=True):
        assert torch.equal(x.cpu(), y.cpu())


TASK = TaskConfig(kind="edge", target="label", classes=2, label_delay="20m")


def with_decoder():
    model = small_tgn(num_relations=4)
    seeded(lambda: LabelTask(TASK).add_decoder(model, 2))
    return model


@for_each_place
@pytest.mark.parametrize(("updates", "task"), [(1, None), (2, None), (1, TASK)])
def test_steps_on_weights_relations_and_labels_are_captured(device, updates, task, monkeypatch):
    events, num = made_events(140), torch.arange(140)
    events = replace(events, weight=1 + num % 3 / 2, relation=num % 4)
    make, found = partial(small_tgn, num_relations=4), []
    changes = {"updates": updates}
    if task is not None:
        events, make = replace(events, label=num % 2), with_decoder
        changes["task"] = task
    for capture in (False, True):
        how = {"capture": capture, "events": events, **changes}
        found.append(trained(device, make, graph_there, monkeypatch, **how))
    (plain, expected, none), (replayed, records, replays) = found
    assert not none
    is_whole = updates == 1 and task is None
    assert set(replays) == ({"step"} if is_whole else {"predict", "learn"})
    assert len(replays) >= 6 * (1 if is_whole else 1 + updates)
    assert [(r.loss, r.metrics) for r in records] == [(r.loss, r.metrics) for r in expected]
    for x, y in zip(state_of(plain._learner), state_of(replayed._learner), strict=True):
        assert torch.equal(x.cpu(), y.cpu())


@for_each_place
def test_batches_of_an_epoch_are_learned_or_predicted_and_stored_by_one_replay(device, monkeypatch):
    found, names, call = [], [], CapturedCalls.call

    def noted(self, name, *rest):
        names.append(name)
        return call(self, name, *rest)

    monkeypatch.setattr(CapturedCalls, "call", noted)
    for capture in (False, True):
        graph, model = graph_there(device), small_tgn().to(place_of(device))
        graph.append(made_events(160))
        plan = Plan.for_model(model, graph, batch_size=20, for_gradients=True)
        how = ExecutionConfig(capture=capture)
        learner = TrainStep(
            model, OfflineConfig(), num_nodes=lambda log=graph.log: log.num_nodes, execution=how
        )
        values = []
        for batch in Loader(plan, num_threads=0, captures=capture):
            learn = learner.learn if batch.index < 5 else None
            taken, _ = learner.take(batch, learn)
            values += [taken[name].cpu() for name in sorted(taken)]
        found.append([*values, *(x.cpu() for x in state_of(learner))])
    assert names == ["learn, commit"] * 5 + ["step"] * 3
    assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))


def captures_of(trainer, monkeypatch):
    """Return a list that grows with each capture, whose items have its pool if it has one."""
    captures = []
    for gpu in {id(gpu): gpu for gpu in (trainer.graph.gpu, device_of(trainer.device))}.values():

        def captured(work, *pool, capture=gpu.capture):
            captures.append(pool)
            return capture(work, *pool)

        monkeypatch.setattr(gpu, "capture", captured)
    return captures


@for_each_place
def test_steady_stream_is_captured_in_its_first_micro_batches(device, monkeypatch):
    """Its slots, and a step in each; a last smaller micro-batch is learned uncaptured."""
    replays = []
    call = CapturedCalls.call

    def counted(self, name, *rest, **options):
        result = call(self, name, *rest, **options)
        replays.append((name, self.was_replay))
        return result

    monkeypatch.setattr(CapturedCalls, "call", counted)
    model, graph, events = small_tgn(neighbors=1), graph_there(device), made_events(153)
    graph.append(events[:60])
    config = ContinualConfig(batch_size=6, mrr_negatives=1)
    trainer = ContinualTrainer(model.to(place_of(device)), graph, config)
    captures = captures_of(trainer, monkeypatch)
    steps = trainer.steps(pieces(events[60:], 60, 33))
    for _ in range(6):
        next(steps)
    most = len(captures)
    assert most >= 5 + 5, "slots for 4 micro-batches ahead, and a step in each"
    list(steps)
    assert len(captures) == most
    assert {name for name, _ in replays} == {"step", "predict", "learn"}
    assert [name for name, is_replay in replays if not is_replay] == ["predict", "learn"]


@for_each_place
def test_pauses_of_a_stream_capture_no_further_slots(device, monkeypatch):
    """Those of the plans before the pause are used again, with the same bits."""
    found = []
    for capture in (False, True):
        trainer = ContinualTrainer(
            small_tgn().to(place_of(device)),
            graph_there(device),
            ContinualConfig(batch_size=20, mrr_negatives=1),
            execution=ExecutionConfig(capture=capture),
        )
        captures = captures_of(trainer, monkeypatch)
        paused = pieces(made_events(200), 50)
        steps = trainer.steps(each for piece in paused for each in (piece, MICRO_BATCH_END))
        found.append([(record.loss, record.metrics) for record in steps])
    assert len(found[0]) == 12
    assert found[0] == found[1]
    assert captures.count(()) == 5, "slots for 4 micro-batches ahead, once"


@for_each_place
def test_memory_that_has_grown_drops_all_graphs(device, monkeypatch):
    trainer = ContinualTrainer(
        small_tgn().to(place_of(device)), graph_there(device), ContinualConfig(batch_size=20)
    )
    steps = trainer.steps(pieces(made_events(200), 160))
    for _ in range(6):
        next(steps)
    state, graphs = trainer.model.state, trainer._learner._calls._graphs
    assert len(graphs) > 2
    left = [weakref.ref(each) for each in (state.clock, state.table.rows)]
    state.resize(2 * len(state.clock))
    next(steps)
    gc.collect()
    assert [each() for each in left] == [None, None]


@needs_apart[0]
def test_shapes_beyond_the_limit_run_uncaptured_until_one_is_evicted(monkeypatch):
    most, long = 4, 30
    monkeypatch.setattr(captured, "MOST_GRAPHS", most)
    monkeypatch.setattr(captured, "LONG", long)
    here, place = plan_of(TemporalGraph.from_events(made_events(60))).batch(0, 4), place_of("apart")
    whole = here.map(lambda column: column.to(place))
    shape, calls = shape_of(whole), CapturedCalls(opened("apart"), None)

    def is_replayed(more_nodes, value=3):
        size = BatchShape(shape.targets, len(whole.nodes) + more_nodes, shape.edges)
        batch = pad(whole, size)
        batch.nodes.fill_(value)
        found = calls.call("double", [batch], [None], lambda x: 2 * x.nodes, lambda out: [out])
        assert torch.equal(found, 2 * batch.nodes)
        return calls.was_replay

    def is_captured(nodes):
        return [is_replayed(nodes, value) for value in range(captured.WARM_UPS + 1)][-1]

    assert all(is_captured(nodes) for nodes in range(1, most + 1))
    assert not is_captured(40)
    for _ in range(long):
        is_replayed(2)
    assert is_captured(40), "in the place of one of the others"
    assert is_replayed(2), "that was in use"


@pytest.mark.slow
@needs_apart[0]
def test_captured_steps_on_late_streams_match_uncaptured_ones_over_200_micro_batches():
    """Records, and all that a checkpoint holds."""
    found = []
    for capture in (False, True):
        with EmulatedDevice.with_late_streams(seed=3) as gpu:
            table = FeatureTable(2, placement="device", device=gpu)
            trainer = ContinualTrainer(
                small_tgn().to(gpu.device),
                TemporalGraph("undirected", edge_x=table, device=gpu),
                ContinualConfig(batch_size=10, learning_rate=1e-2, mrr_negatives=5, mrr_every=2),
                execution=ExecutionConfig(capture=capture),
            )
            records = [
                (record.stop, record.loss, record.metrics, record.running)
                for record in trainer.steps(pieces(made_events(2000), 64))
            ]
            found.append((records, state_in_checkpoint(trainer)))
    (expected, saved), (records, replayed) = found
    assert len(expected) == 200
    assert records == expected
    assert saved.keys() == replayed.keys()
    assert all(torch.equal(saved[name], replayed[name]) for name in saved)
