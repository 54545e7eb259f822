"""Which rank owns which row: one of them, evenly, and rows next to each other different ones."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tgflow.peers import PARTS, Shard
from tgflow.tables.stripes import STRIPE, Stripes, parts_with_rows, stripes_of_part, whole_stripes

ROUND = STRIPE * PARTS
sizes = st.integers(0, 2 * ROUND + STRIPE)


@given(world=st.integers(1, PARTS), size=sizes)
def test_every_row_has_one_owner_and_owners_have_dense_local_ids_in_order(world, size):
    ids = torch.arange(size)
    owners = torch.zeros(size, dtype=torch.int64)
    ranks = range(world) if world < 5 else (0, world // 2, world - 1)
    for rank in ranks:
        stripes = Stripes(Shard(rank, world))
        owned = ids[stripes.owns(ids)]
        assert torch.equal(stripes.local(owned), torch.arange(len(owned)))
        assert torch.equal(stripes.ids(torch.arange(len(owned))), owned)
        assert stripes.count(size) == len(owned)
        assert (stripes.owner(owned) == rank).all()
        owners[owned] += 1
    assert owners.le(1).all()
    assert len(ranks) < world or owners.eq(1).all()


def test_nobody_owns_an_id_below_0():
    assert not Stripes().owns(torch.tensor([-1, -70])).any()


@given(size=sizes)
def test_a_rank_owns_the_rows_of_its_parts_in_any_world(size):
    ids = torch.arange(size)
    for shard in (Shard(1, 3), Shard(3, 4)):
        of_parts = torch.zeros(size, dtype=torch.bool)
        for part in shard.parts:
            of_parts |= stripes_of_part(part).owns(ids)
        assert torch.equal(of_parts, Stripes(shard).owns(ids))


@given(size=sizes)
def test_parts_with_rows_are_those_that_have_some(size):
    found = parts_with_rows(size)
    assert found == [part for part in range(PARTS) if stripes_of_part(part).count(size)]


def test_the_newest_rows_are_with_all_ranks():
    """Of any few stripes next to each other each rank of a small world has about as many."""
    for world in (2, 4, 8):
        stripes = Stripes(Shard(0, world))
        for first in range(0, 2 * PARTS, world):
            owners = stripes.owner(STRIPE * torch.arange(first, first + world))
            assert owners.sort().values.tolist() == [*range(world)]


@given(num_rows=st.integers(0, 10 * STRIPE))
def test_whole_stripes_are_one_at_least(num_rows):
    found = whole_stripes(num_rows)
    assert found % STRIPE == 0
    assert found == whole_stripes(found)
    assert found <= max(STRIPE, num_rows) < found + STRIPE
