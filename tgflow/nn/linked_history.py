"""Reads the history of a memory that was saved when it counted rows, linked per node."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tgflow.nn.history import NO_VERSION, PREVIOUS, ROWS_PER_EVENT


def from_links(state: Mapping[str, Tensor], current: Tensor) -> dict[str, Tensor]:
    """Return what `VersionHistory.load_state_dict` takes of the rows of `state`.

    Which write overwrote a row follows from its node's next version. Where that write began is the
    write before it, as far as rows are left of that one: else earlier, so that a row may be
    forgotten early, but never late.

    Args:
        state: A ring: `rows`, `clock`, `link` and `head`, each row linked to its node's previous
            one, and `next`: the number of the next row, and how many rows the ring holds.
        current: Clocks of the nodes' current versions, int64 `[N, C]`.
    """
    clock, link = state["clock"].cpu(), state["link"].cpu()
    next_row, capacity = state["next"].tolist()
    if capacity < 1 or capacity < len(clock) or len(link) != len(clock):
        raise ValueError(f"history.next counts {capacity} rows, and there are {len(clock)}")
    node, until = _owners(link[:, PREVIOUS], clock[:, -1], state["head"].cpu(), current.cpu(),
                          next_row, capacity)  # fmt: skip
    writes = torch.unique(torch.cat([current.cpu()[:, -1], clock[:, -1]]))
    before = torch.searchsorted(writes, until) - 1
    since = torch.where(before >= 0, writes[before.clamp(min=0)], 0)
    origin = torch.stack([node, since], dim=1)
    order = (node >= 0).nonzero().squeeze(1)
    for column in (node, since):
        order = order[column[order].argsort(stable=True)]
    position = int(writes[-1]) if len(writes) else 0
    return {
        "rows": state["rows"].cpu()[order],
        "clock": clock[order],
        "origin": origin[order],
        "events": torch.tensor([position, max(capacity // ROWS_PER_EVENT, 1)]),
    }


def _owners(
    previous: Tensor, position: Tensor, head: Tensor, current: Tensor, next_row: int, capacity: int
) -> tuple[Tensor, Tensor]:
    """Return the node of each row, -1 for what no node has, and where it was overwritten."""
    owner = torch.full_like(previous, NO_VERSION)
    until = torch.zeros_like(previous)
    node = torch.arange(len(head))
    number, end = head, current[: len(head), -1]
    while len(node):
        held = (number >= max(next_row - capacity, 0)).nonzero().squeeze(1)
        node, end, slot = node[held], end[held], number[held] % capacity
        if bool((owner[slot] != NO_VERSION).any()):
            raise ValueError("history.link goes around in a circle")
        owner[slot], until[slot] = node, end
        number, end = previous[slot], position[slot]
    return owner, until
