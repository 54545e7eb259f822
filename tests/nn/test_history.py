"""The history of a device, which waits for nothing, against that of the host."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import cases, tries
from helpers.emulator import Emulator
from helpers.emulator.device import EmulatedDevice
from tgflow.cuda.history import find_versions
from tgflow.nn import history
from tgflow.nn.history import VersionHistory

NODES = 6
STEPS = st.lists(st.lists(st.booleans(), min_size=NODES, max_size=NODES), max_size=25)


def on_device(kept: VersionHistory, monkeypatch, order: int = 0) -> VersionHistory:
    """A history that takes the ways of a device, its kernel in the emulator."""
    gpu = EmulatedDevice(Emulator(order=order))
    monkeypatch.setattr(history, "device_of", lambda device: gpu)
    kept._on_host = False
    kept._reserve(kept.capacity)
    return kept


def with_nodes(capacity: int) -> VersionHistory:
    made = VersionHistory(capacity, 2, 1)
    made.resize(NODES)
    return made


def append(kept: VersionHistory, chosen: list[bool], position: int) -> None:
    nodes = torch.arange(NODES)
    rows = torch.stack([nodes, torch.full_like(nodes, position)], dim=1).float()
    clock = torch.full((NODES, 1), position)
    mask = torch.tensor(chosen)
    if kept._on_host:
        kept.append(nodes[mask], rows[mask], clock[mask])
    else:
        kept.append_where(mask, nodes, rows, clock)


def every_query(stop: int) -> list[torch.Tensor]:
    grid = torch.cartesian_prod(torch.arange(NODES), torch.arange(stop))
    return [column.contiguous() for column in grid.unbind(1)]


@pytest.mark.parametrize("order", cases([0, 1, 5], [0, 5]))
@pytest.mark.parametrize("capacity", [1, 4, 9, 200])
@settings(max_examples=tries(25), deadline=None)
@given(steps=STEPS)
def test_a_history_that_waits_for_nothing_holds_the_same_versions(capacity, order, steps):
    with pytest.MonkeyPatch.context() as monkeypatch:
        plain, placed = with_nodes(capacity), on_device(with_nodes(capacity), monkeypatch, order)
        for position, chosen in enumerate(steps, start=1):
            append(plain, chosen, position)
            append(placed, chosen, position)
        assert placed.next == plain.next
        queries = every_query(len(steps) + 2)
        for found, expected in zip(placed.read(*queries), plain.read(*queries), strict=True):
            assert torch.equal(found, expected)
        state = placed.state_dict(NODES)
        assert all(torch.equal(state[name], x) for name, x in plain.state_dict(NODES).items())


def test_a_moved_history_continues(monkeypatch):
    plain, placed = with_nodes(3), on_device(with_nodes(3), monkeypatch)
    for position in range(1, 5):
        append(placed, [True] * NODES, position)
    plain.load_state_dict(placed.state_dict(NODES))
    placed.load_state_dict(plain.state_dict(NODES))
    for kept in (plain, placed):
        kept.resize(2 * NODES)
        append(kept, [True, False] * 3, 9)
    assert torch.equal(plain.state_dict(NODES)["head"], placed.state_dict(NODES)["head"])


def test_a_damaged_list_is_left_and_nothing_outside_of_it_is_read(monkeypatch):
    placed = on_device(with_nodes(4), monkeypatch)
    for position in range(1, 4):
        append(placed, [True] + [False] * 5, position)
    placed.link[:] = 2  # forward, and in a circle
    slot = placed._launch(torch.tensor([0, -5, 2**40]), torch.tensor([0, 9, 9]))
    assert slot.tolist() == [-1, -1, -1]


def test_columns_that_kernels_cannot_read_are_refused():
    good = torch.zeros(4, dtype=torch.int64)
    link, clock = torch.zeros(4, 3).long(), torch.zeros(4, 1).long()
    with pytest.raises(ValueError, match="position must be contiguous int64 on cpu"):
        find_versions(Emulator(), good, link, clock, good[0], 4, good, good.int())
    with pytest.raises(ValueError, match="a ring of 5 versions needs as many links"):
        find_versions(Emulator(), good, link, clock, good[0], 5, good, good)
