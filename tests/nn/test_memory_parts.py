"""A memory by parts of its nodes: all of it comes back, and reads leave no trace."""

import pytest
import torch

from tgflow.nn.memory import NodeMemory
from tgflow.peers import PARTS
from tgflow.state import PartedState


def written(events, nodes=200, keep=30, *, table=None, seed=0):
    """Return a memory after some writes of pairs of nodes, each at the position behind them."""
    memory = NodeMemory(3, 2, table)
    memory.keep_past(keep)
    generator = torch.Generator().manual_seed(seed)
    for position in range(1, events + 1):
        pair = torch.randperm(nodes, generator=generator)[:2]
        rows = torch.rand(2, 5, generator=generator)
        t = torch.full((2,), position)
        memory.write(pair, rows[:, :3], t, rows[:, 3:], t, position)
    return memory


def parts_of(memory):
    take = memory.parted()
    return [take(part) for part in range(PARTS)]


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for name, x in left.items():
        assert torch.equal(x, right[name]), name


@pytest.mark.parametrize("keep", [0, 30])
@pytest.mark.parametrize("num_nodes", [1 + 1, 70, 200])
def test_parts_make_the_memory_that_they_are_of(keep, num_nodes):
    memory = written(100, num_nodes, keep)
    parts = parts_of(memory)
    again = NodeMemory(3, 2)
    again.load_parted(parts.__getitem__)
    expected, found = memory.state_dict(), again.state_dict()
    assert_equal(expected, found)
    assert isinstance(memory, PartedState)
    for position in (101, 102):
        for each in (memory, again):
            one, t = torch.tensor([0, 1]), torch.tensor([position] * 2)
            each.write(one, torch.ones(2, 3), t, torch.ones(2, 2), t, position)
    assert_equal(memory.state_dict(), again.state_dict())


def test_nodes_that_were_read_alone_leave_no_trace():
    memory, other = written(40, 90), written(40, 90)
    other.read(torch.tensor([500, 1000]), torch.tensor([40, 40]))
    assert other.num_nodes > memory.num_nodes
    for left, right in zip(parts_of(memory), parts_of(other), strict=True):
        assert_equal(left, right)


def test_parts_of_different_memories_are_refused():
    memory = written(20)
    before = memory.state_dict()
    mixed = parts_of(written(20, keep=30))[:-1] + parts_of(written(20, keep=5))[-1:]
    with pytest.raises(ValueError, match="histories of different events"):
        memory.load_parted(mixed.__getitem__)
    with pytest.raises(KeyError):
        memory.load_parted(([{}] * PARTS).__getitem__)
    assert_equal(memory.state_dict(), before)
