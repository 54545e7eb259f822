"""Synchronization between a store's writer and its readers, with delayed work."""

import gc
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from helpers.emulator.device import EmulatedDevice
from helpers.strategies import graph_events
from tgflow.cuda.readers import Readers
from tgflow.cuda.store import DeviceStore
from tgflow.graph import TemporalGraph
from tgflow.graph.sampling import Sampler, sample_neighbors
from tgflow.graph.tables import FeatureTable

WRITER, TRAINER = 1000, 7


@pytest.fixture
def gpu():
    made = EmulatedDevice()
    made.current = TRAINER
    return made


class HeldUp:
    """Sampler kernels queue behind other work of their CUDA stream until `go`."""

    def __init__(self, gpu):
        self._launch = gpu.kernels.launch
        self._held = []
        self.kept = []
        gpu.kernels.launch = self

    def __call__(self, name, *arguments):
        if name.startswith("sample"):
            self._held.append((name, *arguments))
        else:
            self._launch(name, *arguments)

    def go(self):
        for launch in self._held:
            self._launch(*launch)


def latest(graph, node, kept=None):
    """The events; `kept` are arrays that later kernels still need."""
    nodes, t = torch.tensor([node]), torch.tensor([10**6])
    found = sample_neighbors(graph, Sampler.recent(), nodes, t, 4)
    if kept is not None:
        kept += [nodes, t, found]
    return found.eid


@pytest.mark.parametrize("is_captured", [False, True])
def test_sampler_sees_later_appends_only_at_a_replay(gpu, is_captured):
    """The writer's CUDA stream may be ahead: events are not read before their prediction."""
    graph = TemporalGraph(device=gpu)
    graph.append(graph_events((0, 1, 10), (0, 2, 20)))
    held = HeldUp(gpu)
    gpu.of_thread.captures = is_captured
    found = latest(graph, 0, held.kept)
    gpu.of_thread.captures = False
    graph.append(graph_events((0, 3, 30)))
    with graph.reading() if is_captured else nullcontext():
        held.go()
    assert found.tolist() == [[2, 1, 0, -1] if is_captured else [1, 0, -1, -1]]


def test_history_change_waits_on_the_device_for_earlier_samplers(gpu):
    graph = TemporalGraph(device=gpu)
    graph.append(graph_events((0, 1, 10), (0, 2, 20)))
    latest(graph, 0)
    gpu.waits.clear()
    graph.delete(torch.tensor([1]))
    assert gpu.waits == [(WRITER, TRAINER)]


def test_writer_waits_for_cuda_graph_replays(gpu):
    """Replays wait for appends, and the memory they read is not reused meanwhile."""
    graph = TemporalGraph(device=gpu)
    graph.append(graph_events((0, 1, 10)))
    with graph.reading():
        gpu.busy = {TRAINER}
    assert gpu.waits == [(TRAINER, WRITER)]
    graph.append(graph_events((0, 2, 20)))
    assert graph.backend._store.readers.reclaim() == []
    gpu.busy = set()
    assert len(graph.backend._store.readers.reclaim()) == 1


def test_cuda_stream_waits_once_per_publication(gpu):
    store = DeviceStore(gpu, directed=True)
    for _ in range(5):
        with store.readers.reading():
            pass
    assert gpu.waits == [(TRAINER, WRITER)]


@pytest.mark.parametrize("busy", [TRAINER, WRITER])
@pytest.mark.parametrize("is_captured", [False, True])
@pytest.mark.filterwarnings("error")  # of finalizers
def test_dropping_a_graph_waits_for_its_readers_and_for_its_writer(gpu, busy, is_captured):
    """Memory is reused at once on its own CUDA stream, and pinned memory on all."""
    edge_x = FeatureTable(2, placement="uva", device=gpu)
    graphs = [TemporalGraph(device=gpu, edge_x=edge_x)]
    del edge_x
    graphs[0].append(replace(graph_events((0, 1, 10)), x=torch.ones(1, 2)))
    latest(graphs[0], 0)
    gpu.busy, gpu.synchronized = {busy}, 0

    def drop():
        graphs.clear()
        gc.collect()
        return []

    gpu.capture(drop) if is_captured else drop()
    assert (gpu.busy, gpu.registered) == (set(), {})


def test_pinned_memory_is_kept_until_the_writer_is_done_with_it(gpu):
    """The host reuses pinned memory at once, independent of CUDA streams."""
    with gpu.on(WRITER):
        readers = Readers(gpu)
        readers.retire("pinned", in_host=True)
        readers.published()
    gpu.busy = {WRITER}
    assert readers.reclaim() == []
    gpu.busy = set()
    assert readers.reclaim() == ["pinned"]
