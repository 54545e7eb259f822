"""The cache's kernels: lanes in any order, on any stream, without waiting for the host."""

from __future__ import annotations

import ctypes

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.cache_reference import ReferenceCache
from helpers.effort import cases
from helpers.emulator import Emulator
from helpers.emulator.device import EmulatedDevice
from tgflow.cache import CachedTable, cached
from tgflow.tables import FeatureTable

SIZE = 60


def made(gpu: EmulatedDevice, capacity: int, policy="lru", dim=5, placement="uva") -> CachedTable:
    table = FeatureTable(dim, placement=placement, device=gpu)
    table.append(torch.arange(SIZE * dim).float().view(SIZE, dim))
    return cached(table, rows=capacity, policy=policy, device=gpu)


def some_ids(seed: int, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(size, generator=generator).pow(2).mul(SIZE + 1).long() - 1


@given(
    order=st.integers(0, 5),
    capacity=st.sampled_from((1, 7, 30, 100)),
    policy=st.sampled_from(("lru", "lfu", "fifo")),
    placement=st.sampled_from(("uva", "device")),
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=4),
)
def test_lanes_in_any_order(order, capacity, policy, placement, sizes):
    gpu = EmulatedDevice()
    gpu.kernels.order = order
    cache, reference = made(gpu, capacity, policy, 5, placement), ReferenceCache(capacity, policy)
    for seed, size in enumerate(sizes):
        ids = some_ids(seed, size)
        found = cache.gather(ids)
        reference.gather(ids.tolist())
        assert torch.equal(found, cache.table.gather(ids))
        assert cache.contents().tolist() == reference.contents()


@pytest.mark.parametrize("order", [0, 1, 6])
@pytest.mark.parametrize("policy", ["lru", "fifo"])
def test_the_queue_is_walked_and_packed_step_by_step(policy, order):
    """More entries than a step of the walk has, some of which stay before the ones that go."""
    capacity, size = 3_000, 9_000
    gpu = EmulatedDevice(kernels=Emulator(order=order))
    table = FeatureTable(1, placement="uva", device=gpu)
    table.append(torch.arange(size).float().view(-1, 1))
    cache = cached(table, rows=capacity, policy=policy, device=gpu)
    twin = cached(FeatureTable.from_tensor(table.read(0, size)), rows=capacity, policy=policy)
    generator = torch.Generator().manual_seed(0)
    hot = torch.arange(0, 2_500)
    for step in range(8):
        new = torch.randint(size, (200 + 300 * (step % 3),), generator=generator)
        ids = torch.cat([hot[:: 1 + step % 2], new])
        assert torch.equal(cache.gather(ids), twin.gather(ids))
        assert torch.equal(cache.contents(), twin.contents())
    progress = cache._engine._index._progress
    assert int(progress[4] - progress[3]) <= len(cache._engine._index._queue_slot)


def test_a_gather_looks_at_no_more_of_a_larger_cache():
    """The threads that it starts, and the entries that they walk over, are those of the ids."""
    work = []
    for capacity in (500, 4_000):
        gpu = EmulatedDevice()
        table = FeatureTable(1, placement="uva", device=gpu)
        table.append(torch.zeros(5_000, 1))
        cache = cached(table, rows=capacity, device=gpu)
        gpu.kernels = Recorded(gpu.kernels)
        cache.gather(torch.arange(50))
        work.append([(name, blocks * threads) for name, blocks, threads, _ in gpu.kernels.calls])
    assert work[0] == work[1]


def test_entries_that_are_gone_do_not_pile_up():
    cache, reference = made(EmulatedDevice(), 6), ReferenceCache(6)
    size = len(cache._engine._index._entry)
    for seed in range(60):
        ids = some_ids(seed, 9)
        cache.gather(ids)
        reference.gather(ids.tolist())
        entry = cache._engine._index._entry
        assert len(entry) == size
        assert int((entry != -1).sum()) <= 3 * size // 4
    assert cache.contents().tolist() == reference.contents()


@pytest.mark.parametrize("policy", ["lru", "lfu", "static"])
def test_the_number_of_launches_does_not_depend_on_what_is_asked(policy):
    gpu = EmulatedDevice()
    cache = made(gpu, 40, policy)
    counts = []
    for size in (1, 2, 30):
        gpu.kernels.launches.clear()
        cache.gather(some_ids(size, size))
        counts.append(list(gpu.kernels.launches))
    assert counts[0] == counts[1] == counts[2]
    assert len(counts[0]) == {"lru": 6, "lfu": 7, "static": 5}[policy]
    assert gpu.synchronized == 0


def test_gathers_on_two_streams_take_turns():
    gpu = EmulatedDevice()
    cache = made(gpu, 10)
    cache.gather(some_ids(0, 20))
    gpu.current = 7
    cache.gather(some_ids(1, 20))
    assert set(gpu.waits) == {(7, 0)}  # behind the first gather, and the table's rows
    gpu.current = 0
    gpu.waits.clear()
    cache.gather(some_ids(2, 20))
    assert gpu.waits == [(0, 7)]
    cache.gather(some_ids(3, 20))
    assert gpu.waits == [(0, 7)]


def test_a_cache_is_not_given_back_under_a_gather_on_another_stream():
    gpu = EmulatedDevice()
    for busy in (set(), {7}):
        cache = made(gpu, 10, placement="uva")
        table = cache.table  # outlives it
        gpu.current = 7
        cache.gather(some_ids(0, 20))
        gpu.current, gpu.busy, waited = 0, busy, gpu.synchronized
        del cache
        assert gpu.synchronized == waited + len(busy)
        gpu.busy = set()
        assert len(table) == SIZE


class Recorded:
    """Kernels, and what the host says at each launch: all but addresses."""

    def __init__(self, kernels) -> None:
        self.kernels, self.calls = kernels, []

    def launch(self, name, blocks, threads, *arguments) -> None:
        said = [
            [getattr(each, field) for field, kind in each._fields_ if kind is ctypes.c_int64]
            if isinstance(each, ctypes.Structure)
            else each.value * isinstance(each, ctypes.c_int64)
            for each in arguments
        ]
        self.calls.append((name, blocks, threads, said))
        self.kernels.launch(name, blocks, threads, *arguments)


@pytest.mark.parametrize("placement", cases(["uva", "device"], ["uva"]))
@pytest.mark.parametrize("policy", cases(["lru", "lfu", "fifo", "static"], ["lru", "static"]))
def test_the_host_says_the_same_at_each_gather_that_is_captured(policy, placement):
    gpu = EmulatedDevice()
    cache, reference = made(gpu, 6, policy, 5, placement), ReferenceCache(6, policy)
    gpu.kernels = Recorded(gpu.kernels)
    said = []
    for seed in range(80):
        gpu.captures = seed % 20 >= 5
        if seed == 40:
            cache.restore(cache.snapshot())
        gpu.kernels.calls.clear()
        ids = some_ids(seed, 9)
        found = cache.gather(ids)
        reference.gather(ids.tolist())
        assert torch.equal(found, cache.table.gather(ids))
        assert cache.contents().tolist() == reference.contents()
        entry = cache._engine._index._entry
        assert int((entry != -1).sum()) <= 3 * len(entry) // 4
        if gpu.captures:
            said.append([call for call in gpu.kernels.calls if "gather" not in call[0]][:-1])
    assert all(each == said[0] for each in said)
    assert gpu.waits == []


def test_a_gather_that_fails_midway_takes_its_turn():
    cache, reference = made(EmulatedDevice(), 2), ReferenceCache(2)
    cache.table.gather(torch.tensor([SIZE]))  # the next call is told
    for ids in ([3, 4], [3, 4], [3, 5], [5, 6], [6, 3]):
        try:
            found = cache.gather(torch.tensor(ids))
        except IndexError:
            continue
        reference.gather(ids)
        assert torch.equal(found, cache.table.gather(torch.tensor(ids)))
        assert cache.contents().tolist() == reference.contents()


def test_more_slots_than_can_be_numbered_are_refused():
    with pytest.raises(ValueError, match="at most 2147483647 rows, got 2147483648"):
        made(EmulatedDevice(), 2**31, dim=1)


def test_a_row_that_is_not_there_yet_is_not_held():
    cache = made(EmulatedDevice(), 10)
    cache.gather(torch.tensor([3, SIZE]))
    assert SIZE not in cache.contents().tolist()
    with pytest.raises(IndexError, match=f"was asked for id {SIZE}"):
        cache.gather(torch.tensor([3]))
    cache.append(torch.ones(1, 5))
    assert cache.gather(torch.tensor([SIZE])).unique().tolist() == [1]
