"""Memories that were saved when their history counted rows, and linked them, are still read."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tgflow.nn import NodeMemory

GOLDEN = Path(__file__).parent / "golden" / "linked-history.safetensors"
"""Of `written(11)`, by the last version that saved links."""


def written(num_writes: int) -> NodeMemory:
    """A memory that keeps 6 events: each write is of two, which have four of six nodes."""
    memory = NodeMemory(2, 1)
    memory.keep_past(6)
    for i in range(num_writes):
        write(memory, i)
    return memory


def write(memory: NodeMemory, i: int) -> None:
    position = 2 * (i + 1)
    nodes, t = torch.tensor(sorted((i + j) % 6 for j in range(4))), torch.full((4,), position)
    rows = t.float().unsqueeze(1)
    memory.write(nodes, rows.expand(4, 2), t - 1, -rows, t, position)


def test_a_saved_history_of_links_is_read():
    saved, expected = load_file(GOLDEN), written(11)
    assert {"history.link", "history.head", "history.next"} < saved.keys()
    memory = NodeMemory(2, 1)
    memory.load_state_dict(saved)
    for step in range(11, 15):
        for name, x in expected.state_dict().items():
            assert torch.equal(memory.state_dict()[name], x), (step, name)
        for each in (memory, expected):
            write(each, step)


def test_what_was_half_overwritten_is_forgotten_and_never_read_later():
    """A ring that was cut within a write: the rest of its rows are kept, as of no later write."""
    saved = load_file(GOLDEN)
    saved["history.next"] = saved["history.next"] - torch.tensor([0, 2])  # two rows fewer fit
    for name in ("rows", "clock", "link"):
        kept = saved[f"history.{name}"]
        number = torch.arange(int(saved["history.next"][0]) - 10, int(saved["history.next"][0]))
        moved = kept.new_zeros(10, kept.shape[1])
        moved[number % 10] = kept[number % 12]
        saved[f"history.{name}"] = moved
    memory, expected = NodeMemory(2, 1), written(11)
    memory.load_state_dict(saved)
    nodes, position = torch.cartesian_prod(torch.arange(6), torch.arange(23)).t()
    found, whole = memory.read(nodes, position), expected.read(nodes, position)
    same = (found.state == whole.state).all(dim=1)
    assert bool((same | ~found.has_mail).all())
    assert int((~same).sum()) > 0


def test_links_in_a_circle_are_refused():
    saved = load_file(GOLDEN)
    next_row, capacity = saved["history.next"].tolist()
    numbers = torch.arange(next_row - capacity, next_row)
    saved["history.link"][numbers % capacity, 0] = numbers  # each row is its own previous one
    with pytest.raises(ValueError, match=r"history\.link goes around in a circle"):
        NodeMemory(2, 1).load_state_dict(saved)
