"""Distinct rows on a GPU match the core exactly for any lane order."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import pad

from helpers.devices import device_of, for_each_gpu
from helpers.emulator import Emulator
from helpers.emulator.device import EmulatedDevice
from tgflow.cuda import frontier as kernels
from tgflow.graph import Neighbors
from tgflow.graph.events import NO_NODE
from tgflow.graph.sampling import Frontier
from tgflow.graph.sampling.expand import distinct, expand
from tgflow.plan import _native
from tgflow.plan.assemble import distinct_events

ORDERS = st.sampled_from([0, 1, 2, 3])
"""Lane orders: forward, backward, shuffled."""
EDGES = st.sampled_from([-(2**63), -(2**62), -1, 0, 1, 2**62, 2**63 - 1])


def emulated(order):
    return EmulatedDevice(kernels=Emulator(order=order))


def frontier_of(rows, with_position):
    columns = torch.tensor(rows, dtype=torch.int64).view(-1, 3).T.contiguous()
    return Frontier(*columns[: 2 + with_position])


def frontiers():
    """Queries with repeats and padding, with or without positions."""
    small = st.tuples(st.integers(-1, 2), st.integers(0, 2), st.integers(0, 1))
    extreme = st.tuples(st.integers(0, 1), EDGES, st.sampled_from([0, 2**62]))
    rows = st.lists(small, max_size=12) | st.lists(extreme, max_size=12)
    return st.builds(frontier_of, rows, st.booleans())


def on(gpu, frontier):
    columns = (frontier.nodes, frontier.t, frontier.position, frontier.num_used)
    return Frontier(*(None if c is None else c.to(gpu.device) for c in columns))


def assert_same_frontier(padded, exact):
    """Fail unless the frontiers are equal but for the padding of the first."""
    size = int(padded.size)
    assert size == int(exact.size) == len(exact)
    assert (padded.position is None) == (exact.position is None)
    for name, fill in (("nodes", NO_NODE), ("t", 0), ("position", 0)):
        mine, expected = getattr(padded, name), getattr(exact, name)
        if mine is not None:
            assert torch.equal(mine[:size].cpu(), expected), name
            assert (mine[size:] == fill).all(), name


def with_room(frontier, room):
    """Return the frontier followed by unused rows."""
    position = frontier.position
    return Frontier(
        pad(frontier.nodes, (0, room), value=NO_NODE),
        pad(frontier.t, (0, room)),
        None if position is None else pad(position, (0, room)),
        frontier.size,
    )


def neighbors_with_room(found, room):
    """Return the neighbors; unused queries have none."""
    rows = (0, 0, 0, room)
    return Neighbors(
        pad(found.nodes, rows, value=NO_NODE),
        pad(found.t, rows),
        pad(found.eid, rows, value=-1),
        pad(found.count, (0, room)),
    )


def neighbors_of(frontier, k, seed):
    generator = torch.Generator().manual_seed(seed)
    found = Neighbors.empty(len(frontier), k)
    found.nodes = torch.randint(-1, 4, (len(frontier), k), generator=generator)
    found.eid = torch.where(found.mask, 7, -1)
    found.t = torch.where(found.mask, frontier.t.unsqueeze(1) - 1 - found.nodes, 0)
    return found


@given(
    frontier=frontiers(),
    k=st.integers(1, 3),
    by_time=st.booleans(),
    by_position=st.booleans(),
    room=st.integers(0, 3),
    seed=st.integers(0, 99),
    order=ORDERS,
)
def test_frontier_expansion_matches_the_core(frontier, k, by_time, by_position, room, seed, order):
    """Also for a frontier followed by unused rows."""
    found = neighbors_of(frontier, k, seed)
    how = {"by_time": by_time, "by_position": by_position}
    block, below = expand(frontier, found, 0.5, None, **how)
    padded_block, padded = expand(
        with_room(frontier, room), neighbors_with_room(found, room), 0.5, emulated(order), **how
    )
    size = len(frontier)
    for name in ("target", "neighbor", "mask", "dt", "eid"):
        mine = getattr(padded_block, name)
        assert torch.equal(mine[:size], getattr(block, name)), name
    assert not padded_block.mask[size:].any()
    assert not padded_block.target[size:].any()
    assert not padded_block.neighbor[size:].any()
    assert_same_frontier(padded, below)


def assert_same_events(eids, gpu):
    exact, rows, _ = _native.unique_events(eids)
    padded, mine, size, num_used = distinct_events([eid.to(gpu.device) for eid in eids], gpu)
    assert num_used == len(exact)
    assert size == len(padded) == 1 + sum(eid.numel() for eid in eids)
    assert torch.equal(padded[: len(exact)].cpu(), exact)
    assert (padded[len(exact) :] == -1).all()
    for row, expected in zip(mine, rows, strict=True):
        assert torch.equal(row.cpu(), expected)


SIZES = [0, 1, 255, 256, 257, 4_097, pytest.param(100_000, marks=pytest.mark.slow)]


@for_each_gpu
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_nodes", [1, 50, 10**6])
def test_frontiers_of_any_size_are_expanded(gpu, size, num_nodes):
    there = device_of(gpu)
    generator = torch.Generator().manual_seed(size)
    nodes = torch.randint(num_nodes, (size,), generator=generator)
    t, position = torch.randint(4, (2, size), generator=generator)
    frontier = Frontier(nodes, t, position)
    (padded, mine), (exact, row) = distinct(on(there, frontier), there), distinct(frontier, None)
    assert torch.equal(mine.cpu(), row)
    assert_same_frontier(padded, exact)
    assert_same_events([nodes, t], there)


def test_tensors_unsupported_by_a_kernel_are_refused():
    gpu, nodes = emulated(0), torch.arange(4)
    for t in (nodes.int(), nodes[:3], torch.arange(8)[::2], nodes.to("meta")):
        with pytest.raises(ValueError, match="t must be contiguous int64"):
            kernels.unique_queries(gpu, kernels.QueryRows(nodes, t))
    with pytest.raises(ValueError, match="eids must be contiguous int64"):
        kernels.unique_events(gpu, torch.arange(8)[::2])
    with pytest.raises(ValueError, match=r"nodes must be contiguous int64 \[4, 2\]"):
        kernels.expand_frontier(
            gpu, kernels.QueryRows(nodes, nodes), torch.zeros(3, 2), nodes, 1.0,
            by_time=True, by_position=False,
        )  # fmt: skip
