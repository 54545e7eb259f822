"""Caches return the rows of their table and match a slow reference."""

import gc

import pytest
import torch

from helpers.caches import (
    SIZE,
    ReferenceCache,
    any_schedule,
    check,
    int64,
    made_cache,
    made_rows,
    made_table,
)
from helpers.devices import for_each_device, opened
from tgflow.graph.cache import ScheduleMismatch, cached
from tgflow.graph.tables import FeatureTable

PADDED = torch.cat([made_rows(SIZE), torch.zeros(1, 3)])


@for_each_device
def test_failed_append_changes_nothing(device, monkeypatch):
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


def test_schedule_of_another_batch_raises_and_changes_nothing():
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
    schedule.ids[:], schedule.admit[:] = torch.tensor([4, 5, 6]), torch.tensor([0, -1, 0])
    with pytest.raises(ScheduleMismatch, match="two rows were planned for slot 0"):
        cache.apply(schedule, int64([4, 5, 6]))
    check(cache, reference)
    with pytest.raises(ValueError, match="this cache has 'lru'"):
        made_cache(3).apply(schedule, int64([1]))


@for_each_device
def test_failing_table_leaves_the_cache_consistent(device):
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


def call_and_wait(call, ids):
    """GPU errors are raised once the work is done."""
    call(ids)
    if ids.is_cuda:
        torch.cuda.synchronize()
    call(ids[:1])


@for_each_device
def test_cache_raises_the_same_errors_as_tables(device):
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
def test_host_cache_of_an_in_memory_table_is_refused(placement):
    gpu = None if placement == "host" else opened("apart")
    table = FeatureTable(3, placement=placement, device=gpu)
    with pytest.raises(ValueError, match=f'slows reads of a table with placement="{placement}"'):
        cached(table, rows=4)


def test_cache_size_is_given_once():
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


def test_memory_stays_within_the_budget_after_many_gathers():
    cache = cached(made_table(made_rows(5_000, 16)), bytes=60_000, policy="lfu")
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        cache.gather(torch.randint(5_000, (64,), generator=generator))
        assert cache.cache_nbytes <= 60_000 * 1.1
    gc.collect()
