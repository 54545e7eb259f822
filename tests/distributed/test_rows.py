"""Rows that lie in stripes over ranks, against one table that has all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from helpers.thread_peers import ThreadPeers, in_threads
from tgflow.distributed.rows import STRIPE, ShardedRows
from tgflow.peers import Alone
from tgflow.tables import FeatureTable

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
        return [*found, table.describe()["rows"], len(table._table)]

    results = in_threads(world, work)
    for *found, size, _ in results:
        assert size == len(every)
        for ids, rows in found:
            expected = torch.where((ids < 0).unsqueeze(-1), 0, every[ids.clamp(min=0)])
            assert torch.equal(rows, expected.to(dtype))
    assert sum(num for *_, num in results) == len(every)


def test_bytes_are_as_documented():
    def work(peers: ThreadPeers) -> Any:
        table = sharded(peers)
        table.append(rows_of(70 * STRIPE))
        ids = torch.tensor([1, 1, 40 * STRIPE, -1]) if peers.rank == 0 else torch.tensor([2])
        table.gather(ids)
        return peers.traffic.flows["edge rows"]

    first, second = in_threads(2, work)
    assert (first.calls, second.calls) == (3, 3)
    assert first.bytes == 8 + 8 + 4 * DIM  # one id of the other's, and one row for it
    assert second.bytes == 8 + 8 + 4 * DIM


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
