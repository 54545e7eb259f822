"""Caches: the bytes of the table, and the contents and counts of the slow reference."""

from __future__ import annotations

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.cache_reference import ReferenceCache
from helpers.caches import (
    SIZE,
    any_schedule,
    capacities,
    check,
    ids_lists,
    int64,
    made_cache,
    made_rows,
    made_table,
    policies,
)
from helpers.devices import for_each_device, opened
from helpers.effort import cases
from tgflow.cache import CacheCounters, ScheduleMismatch, cached
from tgflow.cache.policy import POLICIES, Policy, lfu_period
from tgflow.tables import FeatureTable

PADDED = torch.cat([made_rows(SIZE), torch.zeros(1, 3)])


@given(
    capacity=capacities,
    policy=policies,
    first=ids_lists,
    batches=st.lists(ids_lists, max_size=12),
    far=st.booleans(),
)
def test_any_gathers_match_the_reference(capacity, policy, first, batches, far):
    cache, reference = (
        made_cache(capacity, policy, far=far),
        ReferenceCache(capacity, policy),
    )
    cache.preload(int64(first))
    reference.preload(first)
    for ids in batches:
        assert torch.equal(cache.gather(int64(ids)).cpu(), PADDED[ids])
        reference.gather(ids)
        check(cache, reference)


@given(
    capacity=capacities,
    batches=st.lists(st.tuples(ids_lists, st.lists(st.integers(-1, 12), max_size=8)), max_size=10),
    far=st.booleans(),
)
def test_any_schedules_are_applied(capacity, batches, far):
    cache, reference = (
        made_cache(capacity, "belady", far=far),
        ReferenceCache(capacity, "belady"),
    )
    for ids, choice in batches:
        schedule = any_schedule(reference, ids, choice)
        assert torch.equal(cache.apply(schedule, int64(ids)).cpu(), PADDED[ids])
        reference.apply(schedule, ids)
        check(cache, reference)


def test_lfu_counts_age():
    """Rows that were hot long ago make room in the end."""
    cache, reference = made_cache(3, "lfu", size=40), ReferenceCache(3, "lfu")
    batches = [[0]] * 9 + [[1], [2]] + [[row, row - 1] for row in range(4, 40)] * 3
    for ids in batches:
        cache.gather(int64(ids))
        reference.gather(ids)
        check(cache, reference)
    assert 0 not in reference.contents()
    assert reference.admissions > 3 * lfu_period(3)


def test_counters_by_hand():
    cache = made_cache(2, "lru")
    cache.gather(int64([3, -1, 3, 5, 7]))  # 3 and 5 come in, 7 finds no room
    counters = cache.counters
    assert (counters.hits, counters.misses) == (0, 3)
    assert (counters.admitted, counters.evicted, counters.bypassed) == (2, 0, 1)
    cache.gather(int64([5, 9, 1]))  # 5 stays, 9 takes the place of 3
    counters = cache.counters
    assert (counters.hits, counters.misses) == (1, 5)
    assert (counters.admitted, counters.evicted, counters.bypassed) == (3, 1, 2)
    assert cache.contents().tolist() == [9, 5]
    assert counters.bytes_from_table == 60
    assert counters.hit_rate == pytest.approx(1 / 6)
    cache.reset_counters()
    assert (cache.counters.hits, cache.counters.hit_rate) == (0, 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_evaluation_leaves_the_contents_as_they_were(policy: Policy):
    cache = made_cache(4, policy)
    cache.preload(int64([1, 2, 3, 4]))
    cache.gather(int64([2, 3]))
    before = cache.snapshot()
    with cache.restored():
        cache.gather(int64([7, 8, 9, 2]))
    after = cache.snapshot()
    assert torch.equal(before.ids, after.ids)
    assert torch.equal(before.keys, after.keys)
    ids = int64([1, 2, 3, 4, 7, -1])
    assert torch.equal(cache.gather(ids).cpu(), PADDED[ids.cpu()])


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo"])
def test_a_new_cache_goes_on_from_the_snapshot_of_an_older_one(policy: Policy, far):
    old, new = (made_cache(4, policy, far=far) for _ in range(2))
    reference = ReferenceCache(4, policy)
    for ids in ([1, 2, 3, 4], [2, 4], [4, 1, 4]) * 5:
        old.gather(int64(ids))
        reference.gather(ids)
    new.restore(old.snapshot())
    new.reset_counters()
    reference.counters = CacheCounters()
    for ids in ([1, 7], [8, 2], [7, 9], [1, 2, 3]):
        assert torch.equal(new.gather(int64(ids)).cpu(), made_rows(SIZE)[ids])
        reference.gather(ids)
        check(new, reference)


@for_each_device
def test_what_a_change_of_the_table_does(device):
    cache = made_cache(6, device=device)
    cache.gather(int64([0, 1, 10, 11], device))
    cache.scatter_(int64([1, 5], device), torch.full((2, 3), -1.0))
    assert cache[int64([1, 5], device)].cpu().unique().tolist() == [-1]
    cache.truncate(11)
    assert cache.append(torch.full((1, 3), -2.0)) == 11
    assert cache[int64([11, 10], device)].cpu()[0].tolist() == [-2] * 3
    before = cache.snapshot()
    cache.truncate(5)
    cache.restore(before)
    assert max(cache.contents().tolist()) < 5


@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo"])
def test_what_is_appended_is_written_through(policy: Policy):
    cache = made_cache(4, policy, far=True)
    cache.gather(int64([0, 1, 2]))
    reads = cache.table.num_reads
    new = torch.arange(18.0).view(6, 3)
    assert cache.append(new[:2]) == SIZE  # into the free slot, and over 0, the oldest
    assert cache.contents().tolist() == [SIZE + 1, 1, 2, SIZE]
    assert cache.append(new[2:]) == SIZE + 2
    held = [SIZE + 2 + i for i in range(4)]
    assert sorted(cache.contents().tolist()) == held
    assert torch.equal(cache.gather(int64(held)).cpu(), new[2:])
    assert cache.table.num_reads == reads
    counters = cache.counters
    assert (counters.written, counters.admitted, counters.evicted) == (6, 9, 5)
    assert (counters.misses, counters.preloaded) == (3, 0)
    cache.gather(int64([5]))  # 14, the first of the new ones, makes room
    assert SIZE + 2 not in cache.contents().tolist()


@for_each_device
def test_an_append_that_fails_changes_nothing(device, monkeypatch):
    cache = made_cache(4, device=device)
    cache.preload(int64([0, 1], device))
    with pytest.raises(ValueError, match="rows must be float32"):
        cache.append(torch.zeros(2, 5))

    def fail(first, rows):
        raise MemoryError("no room for a copy")

    monkeypatch.setattr(cache._engine, "append", fail)
    with pytest.raises(MemoryError, match="no room for a copy"):
        cache.append(torch.zeros(2, 3))
    assert len(cache) == SIZE
    assert sorted(cache.contents().tolist()) == [-1, -1, 0, 1]


@for_each_device
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 3)])
def test_ids_of_any_shape_into_a_given_tensor(device, shape):
    cache = made_cache(3, device=device)
    ids = int64([2, 2, 4, -1, 0, 4], device)[: torch.Size(shape).numel()].reshape(shape)
    out = torch.full((*shape, 3), torch.nan, device=ids.device)
    assert cache.gather(ids, out) is out
    assert torch.equal(out.cpu(), PADDED[ids.cpu()])


@for_each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8, torch.int64])
@pytest.mark.parametrize("dim", cases([1, 3, 25, 100], [3, 100]))
def test_rows_of_any_width(device, dim, dtype):
    rows = made_rows(50, dim, torch.int64).to(dtype)
    where = None if device == "cpu" else opened(device)
    cache = cached(made_table(rows, device=where), rows=10, device=where)
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        ids = torch.randint(50, (30,), generator=generator)
        assert torch.equal(cache[ids.to(int64([], device).device)].cpu(), rows[ids])


def test_a_script_of_another_batch_raises_and_changes_nothing():
    cache, reference = made_cache(3, "belady"), ReferenceCache(3, "belady")
    schedule = any_schedule(reference, [1, 2, 3], [0, 1, 2])
    cache.apply(schedule, int64([1, 2, 3]))
    reference.apply(schedule, [1, 2, 3])
    for ids, said in (
        ([1, 2], "id 3.* was planned and is not asked for"),
        ([1, 2, 3, 4], "id 4 is asked for and was not planned"),
        ([1, 3, 2], "id 3 is asked for where row 1 .id 2. was planned"),
        ([1, 2, 3], "row 0 .id 1. is in slot 0, not in -1 as planned"),
    ):
        with pytest.raises(ScheduleMismatch, match=said):
            cache.apply(schedule, int64(ids))
        check(cache, reference)
    with pytest.raises(ValueError, match="this cache has 'lru'"):
        made_cache(3).apply(schedule, int64([1]))


@for_each_device
def test_a_table_that_fails_leaves_a_cache_that_is_right(device):
    cache = made_cache(4, device=device, far=True)
    cache.preload(int64([0, 1], device))
    cache.table.fails = True
    for call in (cache.gather, cache.preload):
        with pytest.raises(OSError, match="the disk is gone"):
            call(int64([1, 2, 3], device))
    cache.table.fails = False
    assert cache.contents().tolist()[:2] == [0, 1]
    ids = int64([3, 2, 1, 0], device)
    assert torch.equal(cache.gather(ids).cpu(), PADDED[ids.cpu()])


def test_what_is_far_is_read_once_and_together():
    cache = made_cache(4, far=True)
    cache.gather(int64([0, 1, 1, 0, -1, 2]))
    assert cache.table.num_reads == 3
    cache.gather(int64([0, 1, 5]))
    assert cache.table.num_reads == 4


def call_and_wait(call, ids):
    """A GPU says what was wrong once it is done."""
    call(ids)
    if ids.is_cuda:
        torch.cuda.synchronize()
    call(ids[:1])


@for_each_device
def test_errors_are_those_of_tables(device):
    cache = made_cache(4, device=device)
    with pytest.raises(ValueError, match="ids must be int64, got int32"):
        cache.gather(int64([1], device).int())
    with pytest.raises(
        ValueError, match=r"out must be contiguous float32 \[1, 3\], got float32 \[2"
    ):
        cache.gather(int64([1], device), torch.empty(2, 3))
    with pytest.raises(ValueError, match="ids must be int64, got float32"):
        cache.preload(torch.ones(2))
    with pytest.raises(ValueError, match="of a cache of 3 rows, this one has 4"):
        cache.restore(made_cache(3, device=device).snapshot())
    for call in (cache.gather, cache.preload):
        with pytest.raises(IndexError, match=r"not in (a|the) table"):
            call_and_wait(call, int64([0, 12], device))


@pytest.mark.parametrize("placement", ["host", "device", "uva"])
def test_cache_in_host_memory_is_refused_for_rows_that_stay_in_memory(placement):
    gpu = None if placement == "host" else opened("emulated")
    table = FeatureTable(3, placement=placement, device=gpu)
    with pytest.raises(ValueError, match=f'slows reads of a table with placement="{placement}"'):
        cached(table, rows=4)


def test_a_cache_has_one_size():
    table = made_table(made_rows(SIZE, 25))
    assert cached(table, share=0.25).capacity == 3
    assert cached(table, bytes="1 KiB").capacity == 1024 // (100 + 144)
    assert cached(table, rows=0).capacity == 0
    for sizes in ({}, {"rows": 1, "share": 0.5}):
        with pytest.raises(ValueError, match="give rows, bytes or share"):
            cached(table, **sizes)
    with pytest.raises(ValueError, match="rows must be at least 0, got -1"):
        cached(table, rows=-1)
    with pytest.raises(ValueError, match=r"share must be between 0 and 1, got 1\.5"):
        cached(table, share=1.5)
    with pytest.raises(ValueError, match=r"policy must be one of lru, .*, got 'mru'"):
        cached(table, rows=1, policy="mru")


@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo"])
def test_memory_is_within_the_budget_after_many_gathers(policy):
    cache = cached(made_table(made_rows(5_000, 16)), bytes=60_000, policy=policy)
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        cache.gather(torch.randint(5_000, (64,), generator=generator))
        assert cache.cache_nbytes <= 60_000 * 1.1
    gc.collect()
