"""What a memory was saved as, checked before any of it is used."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tgflow.nn.history import NODE, ORIGIN_WIDTH, SINCE
from tgflow.nn.memory_parts import HISTORY


def check_saved_memory(
    state: Mapping[str, Tensor], dim: int, dtype: torch.dtype, clock_width: int
) -> None:
    """Make sure that a state has the rows and clocks of as many nodes.

    Raises:
        KeyError: If one is missing.
        ValueError: If they are not of these widths and dtypes.
    """
    _check("rows", state["rows"], dtype, dim)
    _check("clock", state["clock"], torch.int64, clock_width, len(state["rows"]))


def saved_history(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what the state of a memory has of its history: nothing, or all of it, checked.

    Raises:
        KeyError: If a tensor is missing.
        ValueError: If it is no history of these nodes.
    """
    history = {k.removeprefix(HISTORY): v for k, v in state.items() if k.startswith(HISTORY)}
    if history:
        _check_history(history, state["rows"], state["clock"])
    return history


def _check_history(history: Mapping[str, Tensor], rows: Tensor, clock: Tensor) -> None:
    origin, events = history["origin"], history["events"]
    _check("history.origin", origin, torch.int64, ORIGIN_WIDTH)
    _check("history.rows", history["rows"], rows.dtype, rows.shape[1], len(origin))
    _check("history.clock", history["clock"], torch.int64, clock.shape[1], len(origin))
    if events.dtype != torch.int64 or events.shape != (2,):
        raise ValueError(f"history.events is {events.dtype} {tuple(events.shape)}, not int64 (2,)")
    position, num_events = events.tolist()
    if num_events < 1 or position < 0:
        raise ValueError(f"the saved memory keeps a history of {num_events} events to {position}")
    nodes, since = origin[:, NODE], origin[:, SINCE]
    if len(nodes) and not 0 <= int(nodes.min()) <= int(nodes.max()) < len(clock):
        raise ValueError(f"the saved history is of nodes that the saved memory has not: {nodes}")
    if len(since) and (
        int(since[0]) < 0 or int(since[-1]) > position or bool((since.diff() < 0).any())
    ):
        raise ValueError(f"history.origin has positions that do not rise from 0 to {position}")


def _check(
    name: str, found: Tensor, dtype: torch.dtype, width: int, size: int | None = None
) -> None:
    shape = (len(found) if size is None and found.ndim else size, width)
    if found.dtype != dtype or found.shape != shape:
        raise ValueError(
            f"the saved memory's {name} is {found.dtype} {tuple(found.shape)}, this one's "
            f"{dtype} {shape}; build the model with the saved configuration"
        )
