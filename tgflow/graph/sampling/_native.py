"""Bindings of the core that sampling uses: tensors in and out, on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from tgflow import _core


def unique_queries(
    nodes: Tensor, t: Tensor, position: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Return the distinct queries, in order of first appearance, and each query's row."""
    out_nodes, out_t, row = torch.empty(3, len(nodes), dtype=torch.int64).unbind(0)
    out_position = None if position is None else torch.empty_like(nodes)
    size = _core.unique_queries(nodes, t, position, out_nodes, out_t, out_position, row)
    positions = None if out_position is None else out_position[:size]
    return out_nodes[:size], out_t[:size], positions, row


def expand_frontier(
    targets: tuple[Tensor, Tensor, Tensor | None],
    neighbors: tuple[Tensor, Tensor],
    seconds_per_tick: float,
    *,
    by_time: bool,
    by_position: bool,
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None, Tensor | None]]:
    """Return the columns of a block, and those of the frontier below."""
    nodes, t = neighbors
    num, k = nodes.shape
    target = torch.empty(num, dtype=torch.int64)
    neighbor = torch.empty(num, k, dtype=torch.int64)
    mask = torch.empty(num, k, dtype=torch.bool)
    dt = torch.empty(num, k, dtype=torch.float32)
    out_nodes = torch.empty(num * (k + 1), dtype=torch.int64)
    out_t = torch.empty_like(out_nodes) if by_time else None
    out_position = torch.empty_like(out_nodes) if by_position else None
    below, block = (out_nodes, out_t, out_position), (target, neighbor, mask, dt)
    size = _core.expand_frontier(*targets, nodes, t, seconds_per_tick, *below, *block)
    times = None if out_t is None else out_t[:size]
    positions = None if out_position is None else out_position[:size]
    return block, (out_nodes[:size], times, positions)
