"""Gradients of slices added over ranks: the bits of one process, and the bytes of the formula."""

from __future__ import annotations

import pytest
import torch

from helpers.effort import cases
from helpers.tree_sum import tree_sum
from helpers.worlds import in_world
from tgflow.distributed.reduce import Reduction
from tgflow.peers import Alone
from tgflow.tree_sum import TreeSum


def gradients(slices, length, seed=0):
    """Values of all exponents: nearly every order of adding has bits of its own."""
    generator = torch.Generator().manual_seed(seed)
    shape = (slices, length)
    exponents = torch.randint(-30, 30, shape, generator=generator)
    return torch.ldexp(torch.randn(shape, generator=generator), exponents)


def sum_all(peers, tasks):
    """Return the bits of the sums of tasks (slices, length, seed), and the bytes sent for each."""
    results = []
    for step, (slices, length, seed) in enumerate(tasks):
        reduction = Reduction(peers, slices, length)
        tree = TreeSum(slices)
        for number in reduction.slices:
            tree.add(range(number, number + 1), gradients(slices, length, seed)[number].clone())
        before = sent_of(peers)
        total = reduction.sum(step, tree)
        results.append((total, sent_of(peers) - before))
    return results


def sent_of(peers):
    flow = peers.traffic.flows.get("gradient")
    return 0 if flow is None else flow.bytes


def bits(tensor):
    return tensor.view(torch.int32)


@pytest.mark.parametrize("world", cases([1, 2, 3, 4], quick=[3]))
def test_sums_over_ranks_have_the_bits_of_one_process(world):
    tasks = [
        (slices, length, seed)
        for slices in range(world, 10)
        for length in (0, 1, 2, 7, 64)
        for seed in range(3)
    ]
    results = in_world(world, sum_all, tasks)
    alone = sum_all(Alone(), tasks)
    for number, (slices, length, seed) in enumerate(tasks):
        expected = tree_sum(list(gradients(slices, length, seed)))
        assert torch.equal(bits(alone[number][0]), bits(expected))
        for rank in range(world):
            assert torch.equal(bits(results[rank][number][0]), bits(expected))
