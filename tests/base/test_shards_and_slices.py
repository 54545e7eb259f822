"""Slices, ranks and shards: each row has one slice, each slice one rank, each id one owner."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tgflow.base.peers import PARTS, Shard, WorldError
from tgflow.base.slice_schedule import SliceSchedule, new_rows_of_slice, rows_of_slice


@given(data=st.data(), slices=st.integers(1, 200))
def test_each_slice_has_one_rank_and_each_rank_as_many_consecutive_slices(data, slices):
    schedule = SliceSchedule(slices, data.draw(st.integers(1, min(slices, PARTS))))
    owned = [schedule.slices_of(rank) for rank in range(schedule.world)]
    assert [number for numbers in owned for number in numbers] == list(range(slices))
    for rank, numbers in enumerate(owned):
        assert {number * schedule.world // slices for number in numbers} == {rank}
    counts = [len(numbers) for numbers in owned]
    assert 1 <= min(counts) <= max(counts) == schedule.most <= min(counts) + 1


@given(slices=st.integers(1, 40), num_new=st.integers(0, 300), num_replayed=st.integers(0, 300))
def test_each_slice_has_its_share_of_new_and_of_replayed_rows(slices, num_new, num_replayed):
    num_rows = num_new + num_replayed
    rows = [rows_of_slice(n, slices, num_new, num_rows).tolist() for n in range(slices)]
    new = [[row for row in part if row < num_new] for part in rows]
    replayed = [[row for row in part if row >= num_new] for part in rows]
    assert rows == [a + b for a, b in zip(new, replayed, strict=True)]
    assert [row for part in new for row in part] == list(range(num_new))
    assert sorted(row for part in replayed for row in part) == list(range(num_new, num_rows))
    assert new == [[*new_rows_of_slice(n, slices, num_new)] for n in range(slices)]
    for parts in (new, replayed, rows):
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1


def test_odd_rows_of_either_kind_are_in_different_slices():
    assert [rows_of_slice(n, 2, 3, 6).tolist() for n in range(2)] == [[0, 3, 5], [1, 2, 4]]


@pytest.mark.parametrize(
    ("slices", "world", "text"),
    [
        (2, 4, "a batch has 2 slices, so at most 2 of 4 ranks can share it; start 2, or set "
         "slices=4"),
        (1, 2, "a batch has 1 slice, so at most 1 of 2 ranks can"),
        (100, 65, "a world has 1 to 64 ranks, got 65"),
    ],
)  # fmt: skip
def test_invalid_worlds_are_refused(slices, world, text):
    with pytest.raises(WorldError, match=text):
        SliceSchedule(slices, world)
    with pytest.raises(ValueError, match="slices must be at least 1, got 0"):
        SliceSchedule(0, world)


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
