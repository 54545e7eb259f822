"""Concurrent gathers: cache contents may depend on timing, returned rows never do."""

import threading

import pytest
import torch

from helpers.caches import made_cache, made_rows

SIZE, DIM = 400, 7


def gather_often(cache, seed, wrong, times=60):
    rows = torch.cat([made_rows(SIZE, DIM), torch.zeros(1, DIM)])
    generator = torch.Generator().manual_seed(seed)
    for _ in range(times):
        ids = torch.rand(90, generator=generator).pow(2).mul(SIZE + 1).long() - 1
        if not torch.equal(cache.gather(ids), rows[ids]):
            wrong.append(ids)


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_concurrent_gathers_snapshots_and_changes(policy):
    cache = made_cache(50, policy, size=SIZE, dim=DIM)
    wrong = []
    threads = [threading.Thread(target=gather_often, args=(cache, i, wrong)) for i in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        with cache.restored():
            cache.preload(torch.arange(30))
        cache.truncate(cache.append(torch.zeros(3, DIM)))
    for thread in threads:
        thread.join()
    assert not wrong
    counters = cache.counters
    brought = counters.preloaded + counters.written
    assert counters.misses - counters.bypassed + brought >= counters.admitted
    held = cache.contents()
    assert len(held[held >= 0].unique()) == int((held >= 0).sum())


def test_concurrent_gathers_and_appends():
    rows = made_rows(40 * 8, DIM)
    cache = made_cache(50, "lru", size=8, dim=DIM)
    wrong = []
    told = [8]

    def follow():
        while (size := told[0]) < len(rows):
            ids = torch.randint(max(size - 90, 0), size, (60,))
            if not torch.equal(cache.gather(ids), rows[ids]):
                wrong.append(ids)

    threads = [threading.Thread(target=follow) for _ in range(3)]
    for thread in threads:
        thread.start()
    for start in range(8, len(rows), 8):
        cache.append(torch.zeros(5, DIM))
        cache.truncate(start)
        told[0] = cache.append(rows[start : start + 8]) + 8
    for thread in threads:
        thread.join()
    assert not wrong
    assert torch.equal(cache.gather(torch.arange(len(rows))), rows)
