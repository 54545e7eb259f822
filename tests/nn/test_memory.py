"""Versions of memory against a dict of all that was ever written."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from helpers.memory_tables import with_past
from tgflow.nn import NodeMemory

WRITES = st.lists(st.tuples(st.sets(st.integers(0, 5), max_size=4), st.integers(1, 3)), max_size=30)


class DictMemory:
    """Every version ever written, and where the write began that has overwritten it."""

    def __init__(self, history: int) -> None:
        self.versions: dict[int, list[tuple[int, float]]] = {}
        self.overwritten: dict[tuple[int, int], int] = {}
        self.history = history
        self.position = 0

    def write(self, nodes: list[int], value: float, position: int) -> None:
        for node in nodes:
            versions = self.versions.setdefault(node, [])
            if versions:
                self.overwritten[node, versions[-1][0]] = self.position
            versions.append((position, value))
        self.position = position

    def read(self, node: int, position: int) -> float:
        versions = self.versions.get(node, [])
        for i, (at, value) in reversed(list(enumerate(versions))):
            if at <= position:
                current = i == len(versions) - 1
                return value if current or self.keeps(node, at) else 0.0
        return 0.0

    def keeps(self, node: int, at: int) -> bool:
        return self.overwritten[node, at] >= self.position - self.history


def write(memory: NodeMemory, nodes: list[int], value: float, position: int) -> None:
    n = len(nodes)
    t = torch.full((n,), position)
    memory.write(
        torch.tensor(nodes, dtype=torch.int64),
        torch.full((n, memory.dim), value),
        t - 1,
        torch.full((n, memory.mail_dim), -value),
        t,
        position,
    )


def written(writes, history: int) -> tuple[NodeMemory, DictMemory, int]:
    memory, expected, position = with_past(NodeMemory(2, 1), history), DictMemory(history), 0
    for i, (nodes, step) in enumerate(writes):
        position += max(step, (len(nodes) + 1) // 2)  # an event has two nodes
        write(memory, sorted(nodes), float(i + 1), position)
        expected.write(sorted(nodes), float(i + 1), position)
    return memory, expected, position


@settings(max_examples=tries(80), deadline=None)
@given(writes=WRITES, history=st.sampled_from([1, 3, 7, 1000]))
def test_versions_match_a_dict(writes, history):
    memory, expected, last = written(writes, history)
    queries = [(node, at) for node in range(7) for at in range(last + 2)]
    nodes, position = torch.tensor(queries).t()
    rows = memory.read(nodes, position)
    values = [expected.read(*query) for query in queries]
    assert rows.memory[:, 1].tolist() == values
    assert rows.mail[:, 0].tolist() == [-v for v in values]
    assert rows.has_mail.tolist() == [v != 0 for v in values]
    assert bool((rows.clock[:, -1] <= position).all())


def test_old_position_without_history_is_an_error():
    memory = NodeMemory(2, 0)
    write(memory, [3], 1.0, 20)
    with pytest.raises(
        ValueError, match="node 3 is asked for as of position 10, but was written at 20"
    ):
        memory.read(torch.tensor([3]), torch.tensor([10]))


def test_other_widths_are_refused_and_change_nothing():
    memory = NodeMemory(2, 2)
    write(memory, [3], 1.0, 20)
    with pytest.raises(ValueError, match=r"rows is torch.float32 \(0, 3\), this one"):
        memory.load_state_dict(NodeMemory(2, 1).state_dict())
    assert memory.read(torch.tensor([3]), torch.tensor([20])).memory.tolist() == [[1.0, 1.0]]


def test_sizes_are_checked():
    with pytest.raises(ValueError, match="dim must be at least 1"):
        NodeMemory(0, 1)
