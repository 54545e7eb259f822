"""The cache on a GPU: bytes, contents and counters under any calls, streams and captures."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.emulator.device import EmulatedDevice
from tgflow.graph.cache import CacheSchedule, cached
from tgflow.graph.cache.device import WAYS
from tgflow.graph.tables import FeatureTable

SIZE = 60


def made(gpu, capacity, dim=5, placement="uva"):
    table = FeatureTable(dim, placement=placement, device=gpu)
    table.append(torch.arange(SIZE * dim).float().view(SIZE, dim))
    return cached(table, rows=capacity, device=gpu)


def some_ids(seed, size):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(size, generator=generator).pow(2).mul(SIZE + 1).long() - 1


def gather_and_check(cache, ids):
    """Rows match the table, and counters are consistent with the contents before and after."""
    before, counted = cache.contents(), cache.counters
    found = cache.gather(ids)
    assert torch.equal(found, cache.table.gather(ids))
    after, counts = cache.contents(), cache.counters
    asked, held = ids[ids >= 0], after[after >= 0]
    hits = asked[torch.isin(asked, before)]
    assert len(held.unique()) == len(held)
    assert torch.isin(hits, after).all(), "a gather evicts no row that it found"
    assert torch.isin(held, torch.cat([before, asked])).all()
    changed = before != after
    assert not (changed & (after < 0)).any()
    for begin in range(0, cache.capacity, WAYS):
        assert changed[begin : begin + WAYS].sum() <= 1
    assert counts.hits - counted.hits == len(hits)
    assert counts.misses - counted.misses == len(asked) - len(hits)
    assert counts.admitted - counted.admitted == int(changed.sum())
    assert counts.evicted - counted.evicted == int((changed & (before >= 0)).sum())
    assert counts.bypassed - counted.bypassed == len(asked) - len(hits) - int(changed.sum())
    missing = len(asked) > len(hits)
    is_free = before.view(-1).lt(0).any() and cache.capacity <= WAYS
    assert not (missing and is_free) or changed.any()


@given(
    order=st.integers(0, 5),
    capacity=st.sampled_from((0, 1, 7, 30, 100)),
    placement=st.sampled_from(("uva", "device")),
    sizes=st.lists(st.integers(1, 150), min_size=1, max_size=3),
)
def test_gathers_match_the_table_in_any_lane_order(order, capacity, placement, sizes):
    contents = []
    for lanes in (0, order):
        gpu = EmulatedDevice()
        gpu.kernels.order = lanes
        cache = made(gpu, capacity, 5, placement)
        for seed, size in enumerate(sizes):
            gather_and_check(cache, some_ids(seed, size))
        contents.append(cache.contents())
    assert torch.equal(contents[0], contents[1])


def test_clock_evicts_rows_not_used_since_the_hand_passed():
    cache = made(EmulatedDevice(), 3)
    for row in (1, 2, 3):
        cache.gather(torch.tensor([row]))
    assert cache.contents().tolist() == [1, 2, 3]
    cache.gather(torch.tensor([4]))  # all were used: the hand clears them and evicts the first
    assert cache.contents().tolist() == [4, 2, 3]
    cache.gather(torch.tensor([2]))
    cache.gather(torch.tensor([5]))  # 2 was used since, 3 was not
    assert cache.contents().tolist() == [4, 2, 5]
    cache.gather(torch.tensor([4, 2, 5, 6]))
    assert cache.contents().tolist() == [4, 2, 5], "all slots are in use by this gather"
    counts = cache.counters
    assert (counts.hits, counts.misses, counts.bypassed) == (4, 6, 1)
    assert (counts.admitted, counts.evicted) == (5, 2)


def test_preload_and_append_fill_the_sets():
    cache = made(EmulatedDevice(), 8)
    cache.preload(torch.tensor([9, 4, 9, -1, 3]))
    assert sorted(cache.contents().tolist()) == [-1] * 5 + [3, 4, 9]
    assert (cache.counters.preloaded, cache.counters.misses) == (3, 0)
    rows = torch.ones(4, 5)
    cache.append(rows)
    assert sorted(cache.contents().tolist()) == [-1, 3, 4, 9, *range(SIZE, SIZE + 4)]
    assert cache.counters.written == 4
    cache.append(2 * torch.ones(20, 5))
    assert cache.contents().min() >= SIZE + 4 + 12
    gather_and_check(cache, torch.arange(SIZE + 24))


@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo", "static", "belady"])
def test_other_policies_are_refused_on_a_gpu(policy):
    with pytest.raises(ValueError, match=rf"policy='{policy}' is for .* use policy='clock'"):
        cached(FeatureTable(2), rows=4, policy=policy, device=EmulatedDevice())
    with pytest.raises(ValueError, match=r"policy='clock' is for .* use policy='lru'"):
        cached(FeatureTable(2), rows=4, policy="clock")
    schedule = CacheSchedule(*(torch.zeros(0, dtype=torch.int64) for _ in range(3)))
    with pytest.raises(ValueError, match="schedules are for"):
        made(EmulatedDevice(), 4).apply(schedule, torch.zeros(0, dtype=torch.int64))


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


def test_cache_is_not_freed_during_a_gather_on_another_stream():
    gpu = EmulatedDevice()
    for busy in (set(), {7}):
        cache = made(gpu, 10, placement="uva")
        table = cache.table  # outlives it
        gpu.current = 7
        cache.gather(some_ids(0, 20))
        gpu.current, gpu.busy, waited = 0, {*busy}, gpu.synchronized
        del cache
        assert gpu.synchronized == waited + len(busy)
        gpu.busy = set()
        assert len(table) == SIZE


ADDRESSES = (
    *("id", "used", "hand", "claim", "clock", "counts", "rows"),
    *("table", "source", "admit", "miss", "out"),
)


class Recorded:
    """Kernels other than gathers, and their arguments: of addresses only whether they are set."""

    def __init__(self, kernels):
        self.kernels, self.calls = kernels, []

    def launch(self, name, blocks, threads, *arguments):
        if "gather" not in name:
            passed = [
                (field, bool(value) if field in ADDRESSES else value)
                for each in arguments
                for field, value in ((field, getattr(each, field)) for field, _ in each._fields_)
            ]
            self.calls.append((name, blocks, threads, passed))
        self.kernels.launch(name, blocks, threads, *arguments)


@pytest.mark.parametrize("placement", ["uva", "device"])
def test_captured_gathers_pass_the_same_arguments(placement):
    gpu = EmulatedDevice()
    cache = made(gpu, 6, 5, placement)
    cache.table.gather(torch.tensor([0]))  # waits for the append
    gpu.waits.clear()
    gpu.kernels = Recorded(gpu.kernels)
    calls = []
    for seed in range(80):
        gpu.of_thread.captures = is_captured = seed % 20 >= 5
        if seed == 40:
            cache.restore(cache.snapshot())
        gpu.kernels.calls.clear()
        cache.gather(some_ids(seed, 9))
        if is_captured:
            calls.append([*gpu.kernels.calls])
        gather_and_check(cache, some_ids(seed, 9))
    gpu.of_thread.captures = False
    assert all(each == calls[0] for each in calls)
    assert gpu.waits == []


def test_gather_after_a_wrong_id_matches_the_table():
    cache = made(EmulatedDevice(), 2)
    cache.table.gather(torch.tensor([SIZE]))  # the next call raises
    for ids in ([3, 4], [3, 4], [3, 5], [5, 6], [6, 3]):
        try:
            found = cache.gather(torch.tensor(ids))
        except IndexError:
            continue
        assert torch.equal(found, cache.table.gather(torch.tensor(ids)))


def test_too_many_slots_are_refused():
    with pytest.raises(ValueError, match="at most 2147483647 rows, got 2147483648"):
        made(EmulatedDevice(), 2**31, dim=1)


def test_row_not_yet_appended_is_not_cached():
    cache = made(EmulatedDevice(), 10)
    cache.gather(torch.tensor([3, SIZE]))
    assert SIZE not in cache.contents().tolist()
    with pytest.raises(IndexError, match=f"was asked for id {SIZE}"):
        cache.gather(torch.tensor([3]))
    cache.append(torch.ones(1, 5))
    assert cache.gather(torch.tensor([SIZE])).unique().tolist() == [1]
