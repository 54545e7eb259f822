"""Temporal neighbour sampling: fixed-shape answers, the same at any thread count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tgflow import _core
from tgflow.events import NO_NODE
from tgflow.graph import TemporalGraph

_EVERYTHING = 2**63 - 1


@dataclass(slots=True, eq=False)
class Neighbors:
    """Up to `k` neighbours of each query, newest first (by event position).

    Missing slots come last and hold `NO_NODE`, time 0 and event -1.
    """

    nodes: Tensor
    """int64 `[Q, k]`."""
    t: Tensor
    """int64 `[Q, k]`: ticks."""
    eid: Tensor
    """int64 `[Q, k]`: log positions."""
    count: Tensor
    """int32 `[Q]`: filled slots of each row."""

    @property
    def mask(self) -> Tensor:
        """Bool `[Q, k]`: whether the slot holds a neighbour."""
        return self.nodes != NO_NODE


def recent_neighbors(
    graph: TemporalGraph, nodes: Tensor, t: Tensor, k: int, before: int | Tensor | None = None
) -> Neighbors:
    """Return the `k` latest neighbours of each node, strictly before its query time.

    Args:
        graph: Graph to read; not modified.
        nodes: Query nodes, int64 `[Q]`. `NO_NODE` and unknown nodes have no neighbours.
        t: Query times in ticks, int64 `[Q]`, in any order.
        k: Neighbours per query, at least 1.
        before: See only events at log positions below this, one for all or int64 `[Q]`.
            Default: the graph's snapshot, `graph.num_events`.

    Returns:
        The neighbours, newest first. A node without history gives a row of padding.

    Raises:
        ValueError: If `k < 1`, or a tensor has another dtype or length.
    """
    return _sample(_core.recent_neighbors, graph, nodes, t, k, before)


def uniform_neighbors(
    graph: TemporalGraph,
    nodes: Tensor,
    t: Tensor,
    k: int,
    *,
    key: int,
    before: int | Tensor | None = None,
) -> Neighbors:
    """Return `k` distinct neighbours of each node, each event before its time equally likely.

    Draws are a function of (`key`, row in this call, draw): the same at any thread count. Give each
    call its own key, or equal rows of two calls draw alike.

    Args:
        graph: Graph to read; not modified.
        nodes: Query nodes, int64 `[Q]`. `NO_NODE` and unknown nodes have no neighbours.
        t: Query times in ticks, int64 `[Q]`, in any order.
        k: Neighbours per query, at least 1. A node with at most `k` gives them all.
        key: Random key, `0 <= key < 2**64`.
        before: See only events at log positions below this, one for all or int64 `[Q]`.
            Default: the graph's snapshot, `graph.num_events`.

    Returns:
        The neighbours, newest first. A node without history gives a row of padding.

    Raises:
        ValueError: If `k < 1`, the key is out of range, or a tensor has another dtype or length.
    """
    if not 0 <= key < 2**64:
        raise ValueError(f"key must be in [0, 2**64), got {key}")
    return _sample(_core.uniform_neighbors, graph, nodes, t, k, before, key)


def _sample(
    native: Callable[..., None],
    graph: TemporalGraph,
    nodes: Tensor,
    t: Tensor,
    k: int,
    before: int | Tensor | None,
    *draws: int,
) -> Neighbors:
    """Check the queries, allocate the answer and have `native` fill it."""
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    size = nodes.numel()
    nodes = _column("nodes", nodes, size)
    t = _column("t", t, size)
    limits, limit = 0, _EVERYTHING
    if isinstance(before, Tensor):
        before = _column("before", before, size)
        limits = before.data_ptr()
    elif before is not None:
        limit = before
    out = Neighbors(
        nodes.new_empty(size, k),
        nodes.new_empty(size, k),
        nodes.new_empty(size, k),
        torch.empty(size, dtype=torch.int32),
    )
    native(
        graph._native,
        nodes.data_ptr(),
        t.data_ptr(),
        limits,
        limit,
        size,
        k,
        *draws,
        out.nodes.data_ptr(),
        out.t.data_ptr(),
        out.eid.data_ptr(),
        out.count.data_ptr(),
    )
    return out


def _column(name: str, values: Tensor, size: int) -> Tensor:
    """Return `values` as the core reads them: int64 `[size]` on the CPU, or ValueError."""
    if values.dtype is not torch.int64 or values.shape != (size,) or not values.is_cpu:
        raise ValueError(
            f"{name} must be int64 [{size}] on the CPU, "
            f"got {values.dtype} {list(values.shape)} on {values.device}"
        )
    return values.contiguous()
