"""Checks of the arguments of inference queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from tgflow.graph import TemporalGraph
from tgflow.model import TemporalModel
from tgflow.units import INT64_MAX, INT64_MIN

Fanout = int | Literal["all"]
"""Neighbors per query of a hop; "all": all that it sees."""


def checked_fanouts(
    model: TemporalModel, fanouts: Sequence[Fanout] | Literal["all"] | None
) -> tuple[Fanout, ...]:
    """Return the fan-outs of queries; None: the model's."""
    if fanouts is None:
        return tuple(model.fanouts)
    whole: Sequence[Fanout] = ["all" for _ in model.fanouts]
    wanted = tuple(whole if fanouts == "all" else fanouts)
    for k in wanted:
        if k != "all" and (not isinstance(k, int) or isinstance(k, bool)):
            raise TypeError(f'fanouts must be whole numbers or "all", got {k!r} in {wanted}')
        if k != "all" and k < 1:
            raise ValueError(f"fanouts must be at least 1 neighbor each, got {wanted}")
    model.check_fanouts(wanted)
    return wanted


def checked_nodes(name: str, nodes: Tensor, graph: TemporalGraph, *dims: int) -> Tensor:
    """Return nodes on the CPU."""
    _checked_tensor(name, nodes)
    if nodes.dim() not in dims:
        shapes = " or ".join("[B]" if dim == 1 else "[B, n]" for dim in dims)
        raise ValueError(f"{name} must be int64 {shapes}, got {list(nodes.shape)}")
    nodes, size = nodes.cpu(), graph.num_nodes
    if nodes.numel() and not 0 <= int(nodes.min()) <= int(nodes.max()) < size:
        wrong = nodes[(nodes < 0) | (nodes >= size)][0]
        raise IndexError(
            f"{name} has node {int(wrong)}, the graph has nodes 0 to {size - 1}: a node can be "
            "asked about once an event with it, or with a later one, was appended"
            if size
            else f"{name} has node {int(wrong)}, the graph has no nodes yet"
        )
    return nodes


def checked_times(t: Tensor | int, size: int) -> Tensor:
    """Return ticks, one for each of `size` queries, int64 on the CPU."""
    if isinstance(t, int) and not isinstance(t, bool):
        if not INT64_MIN <= t <= INT64_MAX:
            raise ValueError(f"t must be a tick of 64 bits, got {t}")
        return torch.full((size,), t, dtype=torch.int64)
    return _checked_column("t", t, size)


def checked_positions(as_of: Tensor | int | None, size: int, num_events: int) -> Tensor:
    """Return log positions, one for each of `size` queries, int64 on the CPU; None: all events."""
    if as_of is None:
        as_of = num_events
    if isinstance(as_of, int) and not isinstance(as_of, bool):
        _check_position(as_of, num_events)
        return torch.full((size,), as_of, dtype=torch.int64)
    positions = _checked_column("as_of", as_of, size)
    if size:
        _check_position(int(positions.min()), num_events)
        _check_position(int(positions.max()), num_events)
    return positions


def _check_position(position: int, num_events: int) -> None:
    if not 0 <= position <= num_events:
        raise ValueError(
            f"as_of must be log positions from 0 to {num_events}, the events that the graph has "
            f"now, got {position}"
        )


def _checked_column(name: str, given: object, size: int) -> Tensor:
    column = _checked_tensor(name, given)
    if column.shape != (size,):
        raise ValueError(f"{name} must be a number or int64 [{size}], got {list(column.shape)}")
    return column.cpu().contiguous()


def _checked_tensor(name: str, given: object) -> Tensor:
    if not isinstance(given, Tensor):
        raise TypeError(f"{name} must be a tensor of int64, got {type(given).__name__}")
    if given.dtype != torch.int64:
        raise ValueError(f"{name} must be int64, got {given.dtype}")
    return given
