"""The canonical sum does not depend on which rank adds which slices."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tgflow.base.tree_sum import TreeSum, subtrees

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
