"""Each row has one slice, each slice one rank, each id one owner; sums have one order."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tgflow.base.peers import PARTS, Shard, WorldError
from tgflow.base.slice_schedule import SliceSchedule, new_rows_of_slice, rows_of_slice
from tgflow.base.tree_sum import TreeSum, subtrees


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


WIDTH = 7


def tree_sum(values):
    """Return the sum of the slices' `values`, added one by one; they may be overwritten."""
    tree = TreeSum(len(values))
    for number, each in enumerate(values):
        tree.add(range(number, number + 1), each)
    return tree.total()


def recursive_sum(values, first, size):
    """The definition: a node is the sum of its children, one or two."""
    if first >= len(values):
        return None
    if size == 1:
        return values[first]
    left = recursive_sum(values, first, size // 2)
    right = recursive_sum(values, first + size // 2, size // 2)
    return left if right is None else left + right


def slow_sum(values):
    return recursive_sum(values, 0, 1 << (len(values) - 1).bit_length())


def bits(tensor):
    return tensor.view(torch.int32).tolist()


def gradients(slices, seed):
    """Values of all exponents, so that nearly every summation order rounds differently."""
    generator = torch.Generator().manual_seed(seed)
    shape = (slices, WIDTH)
    exponents = torch.randint(-30, 30, shape, generator=generator)
    return list(torch.ldexp(torch.randn(shape, generator=generator), exponents))


@st.composite
def cuts(draw):
    """A number of slices, and the first slice of each rank."""
    slices = draw(st.integers(1, 33))
    inner = draw(st.lists(st.integers(1, max(slices - 1, 1)), max_size=slices - 1, unique=True))
    starts = [0, *sorted(inner)] if slices > 1 else [0]
    return slices, [range(a, b) for a, b in zip(starts, [*starts[1:], slices], strict=True)]


def sums_of(owned, values, leaves):
    """Return the subtree sums that a rank with these slices sends."""
    tree = TreeSum(leaves)
    for number in owned:
        tree.add(range(number, number + 1), values[number].clone())
    return tree.roots


@given(cut=cuts(), seed=st.integers(0, 10**6))
def test_any_contiguous_partition_gives_the_same_bits(cut, seed):
    slices, ranks = cut
    values = gradients(slices, seed)
    tree = TreeSum(slices)
    for owned in ranks:
        for leaves, subtotal in sums_of(owned, values, slices):
            tree.add(leaves, subtotal)
    assert bits(tree.total()) == bits(slow_sum(values))


def test_sum_depends_on_the_order_of_slices():
    values = gradients(8, seed=0)
    assert bits(sum(values[1:], values[0])) != bits(slow_sum(values))


@given(slices=st.integers(1, 33), split=st.integers(0, WIDTH), seed=st.integers(0, 10**6))
def test_sum_of_chunks_matches_the_whole(slices, split, seed):
    values = gradients(slices, seed)
    halves = slice(0, split), slice(split, WIDTH)
    chunks = [tree_sum([each[rows].clone() for each in values]) for rows in halves]
    assert bits(torch.cat(chunks)) == bits(slow_sum(values))


@given(cut=cuts())
def test_rank_sends_the_sums_of_few_subtrees(cut):
    slices, ranks = cut
    for owned in ranks:
        roots = subtrees(owned, slices)
        assert [leaf for root in roots for leaf in root] == list(owned)
        assert [leaves for leaves, _ in sums_of(owned, gradients(slices, 0), slices)] == roots
        assert len(roots) <= max(1, 2 * (slices - 1).bit_length())


@pytest.mark.parametrize("slices", range(1, 10))
def test_absent_leaves_are_not_added_as_zeros(slices):
    negative_zero = [torch.tensor([-0.0]) for _ in range(slices)]
    assert torch.signbit(tree_sum(negative_zero)).all()


def test_slices_must_be_added_in_order_and_completely():
    tree = TreeSum(4)
    with pytest.raises(ValueError, match=r"of 4 slices only \[\] were added"):
        tree.total()
    tree.add(range(1, 2), torch.ones(1))
    with pytest.raises(ValueError, match=r"slices \[3, 4\) do not follow slice 1 of 4; add them"):
        tree.add(range(3, 4), torch.ones(1))
    with pytest.raises(ValueError, match=r"slices \[2, 5\) do not follow slice 1 of 4"):
        tree.add(range(2, 5), torch.ones(1))
    tree.add(range(2, 4), torch.ones(1))
    with pytest.raises(ValueError, match=r"only \['\[1, 2\)', '\[2, 4\)'\] were added"):
        tree.total()
    with pytest.raises(ValueError, match="leaves must be at least 1, got 0"):
        TreeSum(0)
