"""A node memory by parts of its nodes, whatever of them a process holds: part = node % PARTS.

A memory of one rank's nodes is in as many parts as the rank owns, by their local ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tgflow.nn.history import NODE, SINCE, VersionHistory
from tgflow.nn.memory_rows import HAS_MAIL
from tgflow.peers import PARTS

HISTORY = "history."
"""What the names of a history's tensors begin with."""
_COLUMNS = ("rows", "clock", "origin")


class MemoryParts:
    """The state of a memory, to be taken part by part before the next event is stored.

    A part ends with its last node that was ever written, so that nodes that were only read, as
    some ranks do and others do not, leave no trace in it.

    Args:
        rows: Of each node, `[N, width]`.
        clock: Of each node, int64 `[N, 4]`.
        history: Of the memory, if it keeps any.
        is_copy: Whether nothing changes `rows`, so that views of them do.
        num_parts: How many parts the nodes are in.
    """

    def __init__(
        self,
        rows: Tensor,
        clock: Tensor,
        history: VersionHistory | None,
        *,
        is_copy: bool,
        num_parts: int = PARTS,
    ) -> None:
        self._rows, self._clock, self._history = rows, clock, history
        self._is_copy, self._num_parts = is_copy, num_parts
        self._sizes = _written_sizes(clock, num_parts)
        self._slots = [] if history is None else _slots_by_part(history, num_parts)

    def __call__(self, part: int) -> dict[str, Tensor]:
        """Return the tensors of a part, rows in the order of nodes; nothing changes them."""
        step = self._num_parts
        stop = part + step * self._sizes[part]
        rows = self._rows[part:stop:step]
        state = {
            "rows": rows if self._is_copy else rows.clone(),
            "clock": self._clock[part:stop:step].clone(),
        }
        if self._history is not None:
            kept = self._history.state_dict(self._slots[part])
            state |= {HISTORY + name: x for name, x in kept.items()}
        return state


def _written_sizes(clock: Tensor, num_parts: int) -> list[int]:
    """Return how many nodes of each part there are up to the last one that was written."""
    written = clock[:, HAS_MAIL].nonzero().squeeze(1)
    sizes = clock.new_zeros(num_parts)
    sizes.scatter_reduce_(0, written % num_parts, written // num_parts + 1, "amax")
    return [int(size) for size in sizes.tolist()]


def _slots_by_part(history: VersionHistory, num_parts: int) -> Sequence[Tensor]:
    slots = history.kept_slots()
    part = history.origin[:, NODE].index_select(0, slots) % num_parts
    order = part.argsort(stable=True)
    sizes: list[int] = part.bincount(minlength=num_parts).tolist()
    return torch.split(slots[order], sizes)


def merge_parts(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the state of the memory of all nodes, as `NodeMemory.load_state_dict` takes it.

    Args:
        parts: What `MemoryParts` gave for each of its parts, in order.

    Raises:
        KeyError: If a tensor is missing.
        ValueError: If parts are of different memories.
    """
    sizes, step = [len(each["clock"]) for each in parts], len(parts)
    num_nodes = nodes_of_parts(sizes)
    state = {}
    for name in ("rows", "clock"):
        state[name] = parts[0][name].new_zeros(num_nodes, parts[0][name].shape[1])
        for part, found in enumerate(parts):
            state[name][part : part + step * sizes[part] : step] = found[name]
    if any(HISTORY + "events" in each for each in parts):
        state |= _merged_history(parts)
    return state


def nodes_of_parts(sizes: Sequence[int]) -> int:
    """Return how many nodes there are if each part ends with its last one.

    Args:
        sizes: Nodes of each part.
    """
    step = len(sizes)
    return max((part + step * (size - 1) + 1 for part, size in enumerate(sizes) if size), default=0)


def _merged_history(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    events = [each[HISTORY + "events"] for each in parts]
    if any(not torch.equal(each, events[0]) for each in events):
        raise ValueError("parts of the saved memory keep histories of different events")
    columns = {name: torch.cat([each[HISTORY + name] for each in parts]) for name in _COLUMNS}
    origin = columns["origin"]
    order = torch.arange(len(origin))
    for column in (NODE, SINCE):
        order = order[origin[order, column].argsort(stable=True)]
    merged = {HISTORY + name: x[order] for name, x in columns.items()}
    return merged | {HISTORY + "events": events[0]}
