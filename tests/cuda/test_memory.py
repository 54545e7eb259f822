"""Node memory kernels, run lane by lane, against the CPU memory."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.devices import needs_apart
from helpers.effort import cases, tries
from helpers.emulator import Emulator
from helpers.emulator.tensors import emulated_device
from helpers.made_tables import with_past
from tgflow.cuda.memory import Versions, read_versions, write_versions
from tgflow.nn import NodeMemory

(needs_device,) = needs_apart
NODES = 6
ORDERS = cases([0, 1, 5], [0, 5])
NODE_LISTS = st.lists(st.integers(0, NODES - 1), max_size=9)
STEPS = st.lists(st.tuples(NODE_LISTS, st.integers(0, 2), st.booleans()), max_size=20)
"""Nodes written, with repeats, the position step, and whether history is lost."""


class KernelMemory:
    """A memory with CPU tensors that kernels read and write."""

    def __init__(self, dims, history, order, nodes=NODES):
        self.memory = with_past(NodeMemory(*dims), history)
        self.memory.resize(nodes)
        if self.memory.history is not None:
            self.memory.history._reserve(2 * history)
        self.kernels = Emulator(order=order)

    @property
    def buffers(self):
        return self.memory._kernel_buffers()

    def write(self, nodes, versions, **how):
        write_versions(self.kernels, self.buffers, nodes, versions, **how)

    def state(self):
        if self.memory.history is not None:
            self.memory.history._count(*self.memory.history.counts.tolist())
        return self.memory.state_dict()


def plain_memory(dims, history, nodes=NODES):
    memory = with_past(NodeMemory(*dims), history)
    memory.resize(nodes)
    return memory


def versions_of(nodes, dims, position):
    """Rows that encode their node and position; rows of a node are equal."""
    whose = (nodes + 100 * position).float().unsqueeze(1)
    t = nodes * 10 + position
    memory, mail = (whose + torch.arange(float(dim)) / 64 for dim in dims)
    return Versions(memory, t, mail, t + 1, torch.tensor([position]))


def reversed_rows(versions):
    """The same versions, from rows in another order."""
    columns = {name: getattr(versions, name).flip(0) for name in ("memory", "last_update", "mail")}
    return versions._replace(**columns, row=torch.arange(len(versions.mail_t)).flip(0))


def write_plain(memory, nodes, versions):
    *columns, position, _ = versions
    memory.write(nodes, *columns, int(position))


def last_of_each(nodes):
    is_last = torch.ones(len(nodes), dtype=torch.bool)
    is_last[:-1] = nodes[1:] != nodes[:-1]
    return is_last


def assert_same(placed, plain):
    found, expected = placed.state(), plain.state_dict()
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        assert torch.equal(found[name], x), name


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("dims", "history"), [((4, 8), 4), ((3, 2), 9), ((1, 0), 1), ((4, 4), 200), ((2, 1), 0)]
)
@settings(max_examples=tries(40, 6), deadline=None)
@given(steps=STEPS)
def test_versions_match_the_cpu_memory(dims, history, order, steps):
    plain, placed, position = plain_memory(dims, history), KernelMemory(dims, history, order), 1
    for nodes, step, is_lost in steps:
        position += step
        sorted_nodes = torch.tensor(sorted(nodes), dtype=torch.int64)
        is_last = last_of_each(sorted_nodes)
        versions = reversed_rows(versions_of(sorted_nodes, dims, position))
        placed.write(sorted_nodes, versions, is_last=is_last, is_lost=torch.tensor(is_lost))
        if not is_lost:
            distinct = sorted_nodes[is_last]
            write_plain(plain, distinct, versions_of(distinct, dims, position))
        assert_same(placed, plain)
    grid = torch.cartesian_prod(torch.arange(NODES), torch.arange(position + 2))
    asked = [column.contiguous() for column in grid.unbind(1)]
    if history == 0:
        asked[1][:] = position
    rows, clock = read_versions(placed.kernels, placed.buffers, *asked)
    expected = plain.read(*asked)
    assert torch.equal(rows, expected.state)
    assert torch.equal(clock, expected.clock)


@pytest.mark.parametrize("history", [700, 5_000])
def test_more_rows_than_a_thread_block_has_threads_are_archived_in_order(history):
    nodes, dims = torch.arange(1_500), (1, 0)
    plain = plain_memory(dims, history, len(nodes))
    placed = KernelMemory(dims, history, 3, len(nodes))
    for position in (1, 2, 3):
        versions = versions_of(nodes, dims, position)
        write_plain(plain, nodes, versions)
        placed.write(nodes, versions)
    assert_same(placed, plain)


def test_node_without_a_row_is_not_written_and_is_reported():
    placed = KernelMemory((2, 1), 4, 0)
    nodes = torch.tensor([-1, 1000, 2**40, 3])
    placed.write(nodes, versions_of(nodes, (2, 1), 1))
    placed.write(nodes, versions_of(nodes, (2, 1), 2))
    assert placed.memory.clock.any(dim=1).nonzero().flatten().tolist() == [3]
    assert placed.memory.history.counts.tolist() == [1, 2]
    rows, clock = read_versions(placed.kernels, placed.buffers, nodes, torch.full((4,), 9))
    assert rows.isnan().all(dim=1).tolist() == [True, True, True, False]
    assert clock.any(dim=1).tolist() == [False, False, False, True]


def test_damaged_version_list_causes_no_out_of_bounds_read():
    placed, nodes = KernelMemory((2, 1), 4, 0), torch.arange(2)
    for position in range(1, 5):
        placed.write(nodes, versions_of(nodes, (2, 1), position))
    placed.memory.history.link[:] = 5  # forward, in a cycle
    rows, _ = read_versions(placed.kernels, placed.buffers, nodes, torch.zeros(2).long())
    assert not rows.any()


@pytest.mark.parametrize("name", ["nodes", "is_last", "is_lost", *Versions._fields])
def test_wrong_tensors_are_refused_before_their_address_is_taken(name):
    placed, nodes = KernelMemory((4, 4), 3, 0), torch.arange(3)
    good = {
        "nodes": nodes, "is_last": torch.ones(3, dtype=torch.bool), "is_lost": torch.tensor(False),
        **reversed_rows(versions_of(nodes, (4, 4), 1))._asdict(),
    }  # fmt: skip
    wrong = [good[name].to(torch.int32), good[name].to("meta"), good[name].unsqueeze(0)]
    for tensor in wrong:
        given = {**good, name: tensor}
        versions = Versions(*(given.pop(field) for field in Versions._fields))
        with pytest.raises(ValueError, match=r"must be contiguous|must be given"):
            placed.write(given.pop("nodes"), versions, **given)
    assert placed.kernels.launches == []


@pytest.mark.parametrize("name", ["rows", "clock", "link", "origin", "head", "counts"])
def test_version_ring_that_is_too_small_is_refused(name):
    placed, nodes = KernelMemory((4, 4), 3, 0), torch.arange(3)
    ring = placed.memory.history
    setattr(ring, name, nodes if name == "counts" else getattr(ring, name)[:0])
    with pytest.raises(ValueError, match=r"a ring of 6 versions of \d+ nodes must|counts must be"):
        read_versions(placed.kernels, placed.buffers, nodes, nodes)
    with pytest.raises(ValueError, match="rows must be given if, and only if"):
        read_versions(placed.kernels, placed.buffers, nodes, nodes, torch.zeros(3, 8))


@needs_device
def test_memory_of_a_device_does_not_move_below_16384_nodes():
    memory = NodeMemory(3, 4).to(emulated_device())
    with memory.covering(100):
        before = list(memory.buffers())
    for num_nodes in (1_000, 16_384):
        with memory.covering(num_nodes):
            assert all(x is y for x, y in zip(memory.buffers(), before, strict=True))
