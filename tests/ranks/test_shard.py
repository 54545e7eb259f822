"""Ownership of ids: exactly one rank each, evenly, in whole partitions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tgflow.base.peers import PARTS, Shard, WorldError

worlds = st.integers(1, PARTS)


@given(world=worlds, num_ids=st.integers(0, 400))
def test_every_id_has_one_owner_and_owners_have_dense_local_ids_in_order(world, num_ids):
    ids = torch.arange(num_ids)
    owners = torch.zeros(num_ids, dtype=torch.int64)
    for rank in range(world):
        shard = Shard(rank, world)
        owned = ids[shard.owns(ids)]
        assert torch.equal(shard.local(owned), torch.arange(len(owned)))
        assert torch.equal(shard.ids(shard.local(owned)), owned)
        assert shard.count(num_ids) == len(owned)
        owners[owned] += 1
    assert owners.eq(1).all()


@given(world=worlds)
def test_ranks_own_consecutive_nonempty_partitions(world):
    parts = [Shard(rank, world).parts for rank in range(world)]
    assert [part for owned in parts for part in owned] == list(range(PARTS))
    assert min(map(len, parts)) >= 1
    for rank, owned in enumerate(parts):
        assert {Shard(rank, world).owner(part) for part in owned} == {rank}


@pytest.mark.parametrize(
    ("rank", "world", "text"),
    [
        (0, 65, "a world has 1 to 64 ranks, got 65"),
        (0, 0, "a world has 1 to 64 ranks, got 0"),
        (2, 2, "rank must be from 0 to 1, got 2"),
        (-1, 2, "rank must be from 0 to 1, got -1"),
    ],
)
def test_rank_outside_the_world_is_refused(rank, world, text):
    with pytest.raises(WorldError, match=text):
        Shard(rank, world)
