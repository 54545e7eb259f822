"""The device store end to end, with emulated kernels, against plain Python."""

import ctypes
from itertools import pairwise
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.effort import cases
from helpers.emulator import CSRC, Emulator
from helpers.emulator.device import EmulatedDevice
from helpers.kernels import assert_equal, sample, staging
from helpers.strategies import event_lists, every_query, hub_events
from tgflow import EventBatch, Sampler
from tgflow.cuda import store_writes
from tgflow.cuda.store import DeviceStore
from tgflow.testing import reference

WRITER = 1000
"""The CUDA stream of a device's first store."""


class Snapshot:
    """Store interface used by `sample`."""

    def __init__(self, store):
        self.snapshot = store._snapshot


def insert(store, events):
    store.reserve(len(events), staging(events))
    store.commit(store.position + len(events))


def grown(events, cuts, gpu=None, directed=False, budget=None):
    store = DeviceStore(gpu or EmulatedDevice(), directed, budget)
    for start, stop in pairwise(sorted({0, len(events), *(min(c, len(events)) for c in cuts)})):
        insert(store, events[start:stop])
    return store


def check(store, events, nodes, t, k, directed=False):
    direction = "directed" if directed else "undirected"
    slow = reference.ReferenceGraph(events, direction)
    kernels, view = store._gpu.kernels, Snapshot(store)
    expected = reference.sample_neighbors(slow, Sampler.recent(), nodes, t, k)
    assert_equal(sample(kernels, view, nodes, t, k), expected)
    expected = reference.sample_neighbors(slow, Sampler.uniform(), nodes, t, k, key=9)
    assert_equal(sample(kernels, view, nodes, t, k, key=9), expected)


@given(
    events=event_lists(),
    cuts=st.lists(st.integers(0, 40), max_size=8),
    k=st.integers(1, 4),
    directed=st.booleans(),
    order=st.integers(0, 5),
    small=st.booleans(),
)
def test_graph_does_not_depend_on_batch_boundaries(events, cuts, k, directed, order, small):
    """By the small path of two launches, and by the large path."""
    gpu = EmulatedDevice()
    gpu.kernels.order = order
    with mock.patch.object(store_writes, "SMALL_PAIRS", 4096 if small else 0):
        store = grown(events, cuts, gpu, directed)
    assert store.position == len(events)
    check(store, events, *every_query(events), k, directed)


def random_queries(events, num_queries, num_nodes):
    generator = torch.Generator().manual_seed(1)
    nodes = torch.randint(-1, num_nodes + 1, (num_queries,), generator=generator)
    t = torch.randint(-1, int(events.t[-1]) + 2, (num_queries,), generator=generator)
    return nodes, t


@pytest.mark.parametrize("budget", cases([None, 64_000, 200_000], [64_000]))
@pytest.mark.parametrize("num_batches", cases([1, 7, 400], [7]))
@pytest.mark.parametrize("small", [True, False])
def test_long_histories_in_both_tiers_match_the_reference(monkeypatch, small, num_batches, budget):
    """Chains of blocks, regrown blocks, reused memory; chunks moved to the host."""
    monkeypatch.setattr(store_writes, "SMALL_PAIRS", 4096 if small else 0)
    events = hub_events(12_000, 300, seed=num_batches)
    store = DeviceStore(EmulatedDevice(), directed=False, budget=budget)
    for rows in torch.arange(len(events)).tensor_split(num_batches):
        insert(store, events[rows])
    check(store, events, *random_queries(events, 300, 300), 12)
    if budget is not None:
        assert store.chunks.tier_bytes(0) <= budget
        assert store.chunks.tier_bytes(1) > 0


def test_released_memory_is_reused():
    """Nodes that grow in sequence: without reuse, each would leave unused blocks behind."""
    store = DeviceStore(EmulatedDevice(), directed=True)
    node = torch.arange(6_000) // 25
    events = EventBatch(node, torch.zeros_like(node), torch.arange(6_000))
    for rows in torch.arange(6_000).tensor_split(600):
        insert(store, events[rows])
    assert store.stats().tiers[0][0] == 240
    assert store.chunks.cursor < 2.5 * 6_000


@pytest.mark.parametrize("tier", ["device", "host"])
def test_out_of_memory_leaves_the_graph_unchanged(tier):
    gpu = EmulatedDevice()
    events = hub_events(4_000, 100, seed=5)
    store = grown(events[:2000], [500], gpu, budget=64_000)
    setattr(gpu, f"{tier}_bytes", 100)
    with pytest.raises(MemoryError, match=r"asked (emulated|the host) for \d+ bytes"):
        insert(store, events[2000:])
    check(store, events[:2000], *random_queries(events, 100, 100), 5)
    setattr(gpu, f"{tier}_bytes", 1 << 30)
    insert(store, events[2000:])
    check(store, events, *random_queries(events, 100, 100), 5)


def test_positions_beyond_32_bits_are_supported():
    """Distant batches in a log of more than 2^32 events: offsets in a block overflow."""
    store = DeviceStore(EmulatedDevice(), directed=True)
    node, t = torch.zeros(3, dtype=torch.int64), torch.arange(3)
    expected = []
    for position in (0, 2**31 - 2, 2**32 - 2, 2**32 + 2, 2**33, 2**40):
        store.position = position
        insert(store, EventBatch(node, torch.arange(1, 4), t + len(expected)))
        expected += [position, position + 1, position + 2]
    queries = torch.zeros(1, dtype=torch.int64), torch.tensor([10**6])
    kernels, view = store._gpu.kernels, Snapshot(store)
    found = sample(kernels, view, *queries, 20)
    assert found.eid[0, :18].tolist() == expected[::-1]
    for cut in (2**31, 2**32 - 1, 2**32 + 3, 2**40 + 1):
        found = sample(kernels, view, *queries, 20, before=cut)
        assert int(found.count[0]) == sum(eid < cut for eid in expected)


def test_compaction_waits_on_the_device_for_readers_of_released_blocks():
    """A sampler launched before the last change needs the older versions."""
    gpu = EmulatedDevice()
    store = DeviceStore(gpu, directed=True)
    insert(store, EventBatch(torch.tensor([0]), torch.tensor([1]), torch.tensor([0])))
    for gpu.current in (7, 8):
        with store.readers.reading():
            pass
    gpu.current, gpu.busy = 0, {7, 8}
    store.reserve_retention(0, 0)
    store.commit_change(store.position)
    gpu.waits.clear()
    waits_at = {}
    launch = gpu.kernels.launch

    def noted(kernel, *arguments):
        waits_at[kernel] = list(gpu.waits)
        launch(kernel, *arguments)

    gpu.kernels.launch = noted
    store.compact()
    assert waits_at["compact_past"] == [(WRITER, 7), (WRITER, 8)]
    assert store.readers.reclaim() == [], "what they may read is not reused"


def test_append_does_not_wait_for_a_device_that_is_behind():
    """Pending totals are bounded; beyond the bound the oldest is waited for."""
    gpu = EmulatedDevice(busy={WRITER})
    store = DeviceStore(gpu, directed=False)
    events = hub_events(3_200, 400, seed=2)
    for start in range(0, 1_200, 20):
        insert(store, events[start : start + 20])
    assert gpu.synchronized == 0
    at_most = store.chunks.cursor
    for start in range(1_200, len(events), 20):
        insert(store, events[start : start + 20])
    assert gpu.synchronized == 1
    store._begin()
    assert store.chunks.cursor < at_most
    assert store.stats().num_entries == 2 * 3_200 - int((events.src == events.dst).sum())


def test_batch_that_may_exceed_free_memory_synchronizes():
    gpu = EmulatedDevice()
    store = DeviceStore(gpu, directed=False, budget=4096)
    insert(store, hub_events(1_000, 50, seed=1))
    assert gpu.synchronized == 1


CODE = """
#include "tgflow/cuda/insertion.hpp"
extern "C" __global__ void classes(int64_t* capacity, int32_t* size_class, int32_t* rooms) {
  const int64_t n = threadIdx.x + blockIdx.x * static_cast<int64_t>(blockDim.x) + 1;
  const int64_t most = int64_t{1} << (6 + n % 9);
  const int64_t total = n % 3 == 0 ? n : n * 8;
  capacity[n - 1] = tgflow::tail_capacity(n < most ? n : most, total, most);
  size_class[n - 1] = tgflow::piece_class(capacity[n - 1]);
  if (n < 31) rooms[n] = tgflow::room_class(tgflow::directory_room((int64_t{1} << n) - 1));
}
"""


@pytest.mark.slow
def test_every_capacity_has_its_own_size_class(tmp_path):
    source = tmp_path / "classes.cu"
    source.write_text(CODE)
    capacity, size_class = torch.zeros(2**15, dtype=torch.int64), torch.zeros(2**15).int()
    rooms = torch.zeros(31).int()
    columns = (ctypes.c_uint64(column.data_ptr()) for column in (capacity, size_class, rooms))
    Emulator((source,)).launch("classes", 2**15 // 64, 64, *columns)
    pairs = set(zip(capacity.tolist(), size_class.tolist(), strict=True))
    assert len(pairs) == len({size for size, _ in pairs}) == len({c for _, c in pairs})
    assert len(pairs) > 60
    assert max(size_class) < 160
    assert rooms[1:].tolist() == list(range(161, 191))
    assert (CSRC / "include/tgflow/cuda/insertion.hpp").read_text().count("160") == 1
