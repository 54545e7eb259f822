"""Readers that start before a write can read between any two of its launches."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from helpers.effort import cases, slow
from helpers.emulator.device import EmulatedDevice
from helpers.kernels import assert_equal, sample, staging
from helpers.strategies import hub_events
from tgflow import Sampler, TemporalGraph
from tgflow.cuda import store_memory, store_writes
from tgflow.cuda.store import DeviceStore
from tgflow.cuda.structs import Snapshot
from tgflow.graph.sampling import sample_neighbors

READER = 7
"""The CUDA stream of the readers."""
NUM_NODES, K = 60, 9


@dataclass
class InFlight:
    """A kernel that uses its snapshot until the writer waits for it."""

    snapshot: Tensor
    num_waits: int

    @property
    def position(self):
        return Snapshot.from_buffer_copy(self.snapshot.numpy()).position


class Readers:
    """Another reader starts before every launch; all active readers query before and after it."""

    def __init__(self, gpu, store, events):
        self.gpu, self.store = gpu, store
        self.twin = TemporalGraph()
        self.twin.append(events)
        self.nodes = torch.arange(NUM_NODES)
        self.t = torch.full_like(self.nodes, 2**40)
        self.in_flight = []
        self.num_answers = 0
        gpu.kernels.between = self.read

    def read(self):
        waited = [
            number for number, (_, other) in enumerate(self.gpu.waits, start=1) if other == READER
        ]
        last = waited[-1] if waited else 0
        self.in_flight = [x for x in self.in_flight if x.num_waits >= last][-3:]
        self.begin()
        for reader in self.in_flight:
            expected = sample_neighbors(
                self.twin, Sampler.recent(), self.nodes, self.t, K, as_of=reader.position
            )
            assert_equal(sample(self.gpu.kernels, reader, self.nodes, self.t, K), expected)
            self.num_answers += 1

    def begin(self):
        writer, self.gpu.current = self.gpu.current, READER
        with self.store.readers.reading():
            held = self.store._snapshot.clone()
        self.gpu.current = writer
        self.in_flight.append(InFlight(held, len(self.gpu.waits)))


@pytest.mark.parametrize("most_chunks", cases([4, 1 << 16], [4]))
@pytest.mark.parametrize("budget", cases([None, 4096, 40_000], [4096]))
@pytest.mark.parametrize(
    ("small", "batch"), [(True, 25), slow(True, 700), slow(False, 25), (False, 700)]
)
def test_readers_between_launches_of_an_insertion_see_a_valid_graph(
    monkeypatch, small, most_chunks, budget, batch
):
    """Small chunks, so that a small chunk table is outgrown more than once."""
    monkeypatch.setattr(store_writes, "SMALL_PAIRS", 4096 if small else 0)
    monkeypatch.setattr(store_memory, "_MOST_CHUNKS", most_chunks)
    events = hub_events(4_000 if batch > 100 else 1_000, NUM_NODES, seed=batch)
    gpu = EmulatedDevice()
    store = DeviceStore(gpu, directed=False, budget=budget)
    readers = Readers(gpu, store, events)
    for start in range(0, len(events), batch):
        part = events[start : start + batch]
        store.reserve(len(part), staging(part))
        store.commit(store.position + len(part))
    assert readers.num_answers > 80
    if budget == 4096:
        assert len(store.chunks.held()) > 16
