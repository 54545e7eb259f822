"""Rows that lie in stripes over ranks, against one table that has all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from helpers.thread_peers import ThreadPeers, in_threads
from tgflow.cache import cached
from tgflow.distributed.rows import ShardedRows
from tgflow.peers import Alone
from tgflow.tables import FeatureTable
from tgflow.tables.stripes import STRIPE

DIM = 3
FLOATS = (torch.float32, torch.float16)


def sharded(peers: Any, dtype: torch.dtype = torch.float32) -> ShardedRows:
    return ShardedRows(FeatureTable(DIM, dtype, "host"), peers)


def rows_of(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(DIM * size).view(size, DIM).to(dtype) + 1


def ids_of(size: int, rank: int, seed: int) -> torch.Tensor:
    """Ids that come several times, and -1; none at all for some ranks."""
    draw = torch.Generator().manual_seed(10 * seed + rank)
    return torch.randint(-1, size, (0 if rank == 1 and seed % 2 else 4, 5), generator=draw)


@settings(max_examples=tries(100, 15), deadline=None)
@given(
    world=st.integers(1, 4),
    sizes=st.lists(st.integers(1, 70 * STRIPE), min_size=1, max_size=4),
    dtype=st.sampled_from(FLOATS),
    back=st.integers(0, 2 * STRIPE),
)
def test_sharded_rows_are_the_rows(world, sizes, dtype, back):
    """While they grow, and after they were rewound."""
    every = rows_of(sum(sizes), dtype)

    def work(peers: ThreadPeers) -> list[Any]:
        table, found = sharded(peers, dtype), []
        for seed, size in enumerate([*sizes, -back]):
            if size > 0:
                first = len(table)
                assert table.append(every[first : first + size]) == first
            else:
                table.truncate(max(1, len(table) - back))
            ids = ids_of(len(table), peers.rank, seed)
            found.append((ids, table.gather(ids)))
        table.append(every[len(table) :])
        assert torch.equal(table.read(0, len(table)), every)
        return [*found, table.describe()["rows"], len(table.here)]

    results = in_threads(world, work)
    for *found, size, _ in results:
        assert size == len(every)
        for ids, rows in found:
            expected = torch.where((ids < 0).unsqueeze(-1), 0, every[ids.clamp(min=0)])
            assert torch.equal(rows, expected.to(dtype))
    assert sum(num for *_, num in results) == len(every)


def test_bytes_are_as_documented():
    """Of two who ask together: counts and ids of 8 bytes, and a row an id that another has."""

    def work(peers: ThreadPeers) -> Any:
        table = sharded(peers)
        table.append(rows_of(3 * STRIPE))
        theirs = STRIPE * (1 - peers.rank)  # stripes 0 and 1 are with ranks 0 and 1
        ids = torch.tensor([theirs, theirs, theirs + 1, STRIPE * peers.rank, -1])
        found = table.gather_each([ids, ids[:1]])
        assert torch.equal(found[0][:1], found[1])
        return peers.traffic.flows["edge rows"]

    for flow in in_threads(2, work):
        assert flow.calls == 3
        assert flow.bytes == 2 * 8 + 3 * (8 + 4 * DIM)


def test_several_ask_together_as_by_themselves():
    def work(peers: ThreadPeers) -> None:
        table = sharded(peers)
        table.append(rows_of(200))
        asks = [ids_of(200, peers.rank, seed) for seed in range(3)]
        for ids, found in zip(asks, table.gather_each(asks), strict=True):
            assert torch.equal(found, table.gather(ids))
        out = torch.empty(4, DIM)
        assert table.start_gather(torch.arange(4), out).wait() is out
        assert torch.equal(out, rows_of(4))

    in_threads(3, work)


@pytest.mark.parametrize("capacity", [0, 5, 100])
def test_a_cache_in_front_gives_the_rows_while_they_grow(capacity):
    """Ranks find different rows in it, some of them all: they ask together all the same."""
    every = rows_of(400)

    def work(peers: ThreadPeers) -> int:
        table = cached(sharded(peers), rows=capacity, policy="lru")
        for step in range(6):
            table.append(every[40 * step : 40 * step + 40])
            if step == 3:
                table.truncate(100)
                table.append(every[100:160])
            ids = ids_of(len(table), peers.rank, step)
            if peers.rank == 2:
                ids = torch.arange(len(table) - 3, len(table))  # these came with the stream
            expected = torch.where((ids < 0).unsqueeze(-1), 0, every[ids.clamp(min=0)])
            assert torch.equal(table.gather(ids), expected)
        return table.counters.hits

    assert in_threads(3, work)[2] == (18 if capacity else 0)


def test_rows_are_overwritten_where_they_are():
    def work(peers: ThreadPeers) -> None:
        table = cached(sharded(peers), rows=50)
        table.append(rows_of(200))
        ids = torch.tensor([0, 70, 140, 199])
        table.scatter_(ids, -rows_of(4))
        assert torch.equal(table.gather(ids), -rows_of(4))
        assert torch.equal(table.read(1, 70), rows_of(70)[1:])
        with pytest.raises(ValueError, match="ids must be unique, and 3 comes twice"):
            table.scatter_(torch.tensor([3, 3]), rows_of(2))

    in_threads(2, work)


def test_rows_of_other_ranks_are_not_taken_for_own():
    def work(peers: ThreadPeers) -> None:
        table = sharded(peers)
        own = STRIPE if peers.rank == 0 else 6
        with pytest.raises(ValueError, match=f"of 70 rows {own} more are this rank's, got 1"):
            table.append_own(rows_of(1), 70)
        assert len(table) == 0
        table.append_own(rows_of(70)[:STRIPE] if peers.rank == 0 else rows_of(70)[STRIPE:], 70)
        assert torch.equal(table.read(0, 70), rows_of(70))

    in_threads(2, work)


def test_an_id_that_is_not_there_is_refused():
    table = sharded(Alone())
    table.append(rows_of(5))
    with pytest.raises(IndexError, match="id 5 is not in a table of 5 rows"):
        table.gather(torch.tensor([5]))
    with pytest.raises(ValueError, match="ids must be int64"):
        table.gather(torch.tensor([1.0]))


def test_a_table_with_rows_is_refused():
    table = FeatureTable(DIM, placement="host")
    table.append(rows_of(2))
    with pytest.raises(ValueError, match="has 2 rows already; give an empty one"):
        ShardedRows(table, Alone())
