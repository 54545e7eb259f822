"""Training on a device: same losses, no synchronization, nothing lost on divergence."""

import math
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from helpers.devices import (
    apart,
    cuda,
    opened,
    place_of,
    without_autograd_threads,  # noqa: F401
)
from helpers.effort import cases
from helpers.emulator.tensors import watching
from helpers.made_streams import made_events, pieces, small_tgat, small_tgn
from tgflow import ContinualConfig, ContinualTrainer, OfflineConfig, OfflineTrainer, TemporalGraph
from tgflow.cuda.device import device_of
from tgflow.graph.tables import FeatureTable
from tgflow.nn.groups import PAIR_GROUPS
from tgflow.train import TrainingDiverged
from tgflow.train.config import ExecutionConfig
from tgflow.train.results import MOST_BEHIND

pytestmark = pytest.mark.usefixtures("without_autograd_threads")
for_each_place = pytest.mark.parametrize("device", [apart, cuda])


def graph_on(device):
    """A graph entirely on a device: neighborhoods and features."""
    gpu = opened(device)
    table = FeatureTable(2, placement="host" if device == "cpu" else "device", device=gpu)
    return TemporalGraph("undirected", edge_x=table, device=gpu)


def trainer_on(device, model=None, graph=None, *, capture=True, **changes):
    settings = {"batch_size": 20, "learning_rate": 1e-2, "mrr_negatives": 5, **changes}
    model = small_tgn(dropout=0.0) if model is None else model
    graph = TemporalGraph("undirected", 2) if graph is None else graph
    config, execution = ContinualConfig(**settings), ExecutionConfig(capture=capture)
    return ContinualTrainer(model.to(device), graph, config, execution=execution)


def records_of(trainer, events):
    return list(trainer.steps(pieces(events, 64)))


@for_each_place
@pytest.mark.parametrize("make", cases([small_tgn, small_tgat], [small_tgn]))
@pytest.mark.parametrize("has_graph", cases([False, True], [False]))
def test_device_training_matches_the_cpu(device, make, has_graph):
    events = made_events(80)
    expected = records_of(trainer_on("cpu", make(dropout=0.0)), events)
    graph = graph_on(device) if has_graph else None
    trainer = trainer_on(place_of(device), make(dropout=0.0), graph)
    found = records_of(trainer, events)
    assert [r.stop for r in found] == [r.stop for r in expected]
    assert [r.loss for r in found] == pytest.approx([r.loss for r in expected], rel=1e-3)
    assert found[-1].prequential == pytest.approx(expected[-1].prequential, rel=1e-2)


@for_each_place
@pytest.mark.parametrize("has_graph", cases([False, True], [True]))
@pytest.mark.parametrize("visibility", cases(["event", "batch"], ["event"]))
def test_lists_and_ranks_among_all_on_a_device_match_the_cpu(device, has_graph, visibility):
    events, found = made_events(80), []
    changes = {"negatives": "random:4,source:2", "loss": "softmax", "mrr_negatives": "all"}
    changes["visibility"] = visibility
    for place in ("cpu", device):
        graph = graph_on(place) if has_graph and place != "cpu" else None
        model, there = small_tgn(dropout=0.0, pair_features=PAIR_GROUPS), place
        there = "cpu" if place == "cpu" else place_of(device)
        trainer = trainer_on(there, model, graph, **changes)
        found.append(records_of(trainer, events))
    expected, found = found
    assert [r.loss for r in found] == pytest.approx([r.loss for r in expected], rel=1e-3)
    # an event that changes places
    assert found[-1].prequential == pytest.approx(expected[-1].prequential, abs=0.05)


@for_each_place
@pytest.mark.parametrize("mrr_negatives", cases([3, "all"], ["all"]))
def test_offline_training_on_a_device_matches_the_cpu(device, mrr_negatives):
    config = OfflineConfig(
        epochs=1, batch_size=20, learning_rate=1e-2, mrr_negatives=mrr_negatives,
        negatives="random:4,source:2",
    )  # fmt: skip
    results = []
    for place in ("cpu", place_of(device)):
        graph = TemporalGraph.from_events(made_events(200))
        model = small_tgn(dropout=0.0).to(place)
        results.append(OfflineTrainer(model, graph, config).fit())
    for name in ("test.ap", "test.mrr", "inductive.test.ap", "val.ap"):
        # of some ten events, two that change places are .02
        assert results[1][name] == pytest.approx(results[0][name], abs=0.04), name


@pytest.mark.parametrize("device", [apart])
@pytest.mark.parametrize("make", cases([small_tgn, small_tgat], [small_tgn]))
@pytest.mark.parametrize("has_graph", cases([False, True], [False]))
def test_training_step_does_not_synchronize(device, make, has_graph):
    place, graph = place_of(device), graph_on(device) if has_graph else None
    gpus = {id(gpu): gpu for gpu in (device_of(place), graph and graph.gpu) if gpu}.values()
    trainer = trainer_on(place, make(), graph)
    steps = trainer.steps(pieces(made_events(260), 64))
    next(steps)
    for gpu in gpus:
        gpu.synchronized = 0
    with watching() as watch:
        for _ in range(6):
            next(steps)
    assert not watch.waits
    assert [gpu.synchronized for gpu in gpus] == [0] * len(gpus)


@for_each_place
def test_records_have_bounded_lag_and_are_all_delivered(device):
    trainer = trainer_on(place_of(device), batch_size=5, mrr_negatives=2)
    seen = []
    for record in trainer.steps(pieces(made_events(100), 64)):
        seen.append(record.stop)
        assert trainer.num_pending <= MOST_BEHIND
        assert trainer.position - record.stop <= MOST_BEHIND * 5
    assert seen == list(range(5, 105, 5))


class Poisoned(torch.nn.Module):
    """A decoder with a non-finite score for one learned event, detected on the device."""

    def __init__(self, decoder, bad_event):
        super().__init__()
        self.decoder, self.bad_event = decoder, bad_event

    def forward(self, z, batch):
        scores = self.decoder(z, batch)
        if not self.training:
            return scores
        hit = (batch.eid[: batch.num_new] == self.bad_event).any()
        return scores._replace(positive=scores.positive.masked_fill(hit, math.nan))


@pytest.mark.slow
@for_each_place
def test_non_finite_value_in_a_captured_step_is_named(device):
    trainer, stops = trainer_on(place_of(device), mrr_negatives=2), []
    trainer.model.decoder = Poisoned(trainer.model.decoder, 250)
    steps = trainer.steps(pieces(made_events(300), 64))
    with pytest.raises(TrainingDiverged, match=r"batch 12, events \[240, 260\)"):
        stops.extend(record.stop for record in steps)
    assert stops == list(range(20, 260, 20))  # also those that come with the stream's end
    assert trainer.position == 240


MAY_WAIT = {
    "loader.py take",  # for a batch that is asked for before it is prepared
    "store.py reserve",  # for totals of inserts that are late, to know what room there is
}


@contextmanager
def counted_host_waits():
    """Count waits for events, streams and devices, by the file and function that call them."""
    found = Counter()

    def counted(wait):
        def call(*arguments, **options):
            code = sys._getframe(1).f_code
            found[f"{Path(code.co_filename).name} {code.co_name}"] += 1
            return wait(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner in (torch.cuda, torch.cuda.Event, torch.cuda.Stream):
            patch.setattr(owner, "synchronize", counted(owner.synchronize))
        yield found


def test_host_waits_for_events_streams_and_devices_are_counted(monkeypatch):
    waited = []
    for owner in (torch.cuda, torch.cuda.Event, torch.cuda.Stream):
        monkeypatch.setattr(owner, "synchronize", lambda *given: waited.append(given))
    with counted_host_waits() as waits:
        torch.cuda.synchronize("cuda:1")
        torch.cuda.Event.synchronize("event")
        torch.cuda.Stream.synchronize("stream")
    here = test_host_waits_for_events_streams_and_devices_are_counted.__name__
    assert waits == {f"{Path(__file__).name} {here}": 3}
    assert waited == [("cuda:1",), ("event",), ("stream",)]


@pytest.mark.parametrize("device", [cuda])
@pytest.mark.parametrize("make", [small_tgn, small_tgat])
@pytest.mark.parametrize("capture", [False, True])
def test_gpu_training_does_not_synchronize_and_has_flat_peak_memory(device, make, capture):
    trainer = trainer_on(place_of(device), make(), graph_on(device), capture=capture)
    steps = trainer.steps(pieces(made_events(8000), 64))
    for _ in range(100):
        next(steps)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.cuda.set_sync_debug_mode("error")  # which sees neither events nor devices
    with counted_host_waits() as waits:
        try:
            for _ in range(200):
                next(steps)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert waits.keys() <= MAY_WAIT, waits
    assert torch.cuda.max_memory_allocated() < before + (8 << 20)  # the stream's own features
