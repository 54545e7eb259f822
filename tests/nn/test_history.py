"""What is kept of the overwritten versions of a memory: what the last events have overwritten."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from helpers.memory_tables import with_past
from tgflow.nn import NodeMemory

WRITES = st.lists(
    st.tuples(st.sets(st.integers(0, 9), max_size=6), st.integers(0, 3)), min_size=1, max_size=20
)


def write(memory: NodeMemory, nodes: list[int], position: int) -> None:
    """Give each node a row that says when it was written."""
    ids, t = torch.tensor(nodes, dtype=torch.int64), torch.full((len(nodes),), position)
    memory.write(ids, t.float().view(-1, 1), t, t.float().view(-1, 1), t, position)


def read(memory: NodeMemory, node: int, position: int) -> float:
    return float(memory.read(torch.tensor([node]), torch.tensor([position])).memory)


def positions_of(writes) -> list[int]:
    """Where each write ends, whose nodes are those of its events."""
    sizes = torch.tensor([max(step, (len(nodes) + 1) // 2) for nodes, step in writes])
    return sizes.cumsum(0).tolist()


@settings(max_examples=tries(60), deadline=None)
@given(writes=WRITES, history=st.integers(1, 30))
def test_a_history_of_some_nodes_keeps_what_that_of_all_does(writes, history):
    whole, *parts = (with_past(NodeMemory(1, 1), history) for _ in range(3))
    ends = positions_of(writes)
    for (nodes, _), position in zip(writes, ends, strict=True):
        write(whole, sorted(nodes), position)
        for rank, part in enumerate(parts):
            write(part, [node for node in sorted(nodes) if node % 2 == rank], position)
    nodes, position = torch.cartesian_prod(torch.arange(10), torch.arange(ends[-1] + 1)).t()
    for rank, part in enumerate(parts):
        owned = nodes % 2 == rank
        asked = nodes[owned], position[owned]
        assert torch.equal(part.read(*asked).state, whole.read(*asked).state)
    saved, halves = whole.state_dict(), [part.state_dict() for part in parts]
    for rank, half in enumerate(halves):
        owned = saved["history.origin"][:, 0] % 2 == rank
        for name in ("rows", "clock", "origin"):
            assert torch.equal(half[f"history.{name}"], saved[f"history.{name}"][owned])
        assert torch.equal(half["history.events"], saved["history.events"])


def test_what_does_not_fit_a_memory_is_refused_and_changes_nothing():
    memory = with_past(NodeMemory(1, 1), 10)
    for position in (5, 6, 7):
        write(memory, [1], position)
    good = memory.state_dict()
    for name, wrong, error in (
        ("history.events", torch.tensor([6, 0]), "a history of 0 events"),
        (
            "history.origin",
            torch.tensor([[7, 5], [7, 6]]),
            "of nodes that the saved memory has not",
        ),
        ("history.origin", torch.tensor([[1, 6], [1, 5]]), "positions that do not rise"),
        ("history.origin", torch.tensor([[1, 5], [1, 8]]), "positions that do not rise"),
        ("history.origin", torch.tensor([5, 6]), r"history.origin is torch.int64 \(2,\)"),
        ("history.rows", torch.zeros(0, 2), r"history.rows is torch.float32 \(0, 2\)"),
        ("history.clock", torch.zeros(2, 3), "history.clock is torch.float32"),
        ("history.events", torch.tensor([6]), r"history.events is torch.int64 \(1,\)"),
        ("history.events", torch.tensor([-6, 10]), "a history of 10 events to -6"),
        ("clock", torch.zeros(0, 4, dtype=torch.int64), "memory's clock is"),
        ("rows", torch.zeros(2, 5), r"memory's rows is torch.float32 \(2, 5\)"),
        ("rows", torch.zeros(()), "memory's rows is"),
    ):
        with pytest.raises(ValueError, match=error):
            memory.load_state_dict(good | {name: wrong})
        assert read(memory, 1, 5) == 5.0
    with pytest.raises(ValueError, match="events to keep must be at least 0, got -1"):
        memory.keep_past(-1)
