"""Attention over neighbors in input space: scores and sums of the inputs, never of projections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tgflow.batch import Block
from tgflow.nn._native import Attend, can_attend
from tgflow.nn.time_encoding import TimeEncoding

MASKED = -1e30
"""The score of a missing neighbor: finite, so that a row without any has no NaN."""


class Attended(NamedTuple):
    """What attention leaves of the neighbors of `N` targets, per head."""

    inputs: Tensor
    """float32 `[H, N, D]`: weighted sums of the inputs [h | edge_x | time], or zeros."""
    weight: Tensor
    """float32 `[H, N]`: sums of weights: 1 before dropout, 0 for a target without neighbors."""


def attend(
    query: Tensor, below: Tensor | None, block: Block, time: TimeEncoding, keep: Tensor | None
) -> Attended:
    """Return the softmax-weighted sums of each target's neighbors' inputs.

    Args:
        query: What each head looks for, in input space and scaled: float32 `[H, N, D]`, or
            `[H, 1, D]` if all targets look for the same.
        below: The frontier below, float32 `[F, h_dim]`, or None if it has no inputs.
        block: The neighbors.
        time: Encodes `block.dt`; with `below` and `block.edge_x` it makes up `D`, in the order
            [below | edge_x | time].
        keep: Factors of the weights after the softmax (dropout), float32 `[H, N, k]`, or None.

    In float32 one pass that gathers nothing does it: of the native core on the CPU, of kernels on a
    GPU, where it does not synchronize and gradients have the same bits at every run.
    """
    if not can_attend(query, block):
        return attend_plain(query, below, block, time, keep)
    below = None if below is None else below.contiguous()
    arguments = (query.contiguous(), below, time.frequency, keep, block)
    return Attended(*Attend.apply(*arguments))  # type: ignore[no-untyped-call]


def attend_plain(
    query: Tensor, below: Tensor | None, block: Block, time: TimeEncoding, keep: Tensor | None
) -> Attended:
    """Do the same in torch, for any device and type."""
    parts = list(_parts(below, block, time))
    query = query.expand(-1, len(block.target), -1).transpose(0, 1)
    queries = torch.split(query, [part.shape[-1] for part in parts], dim=-1)
    scores = torch.stack([q @ x.transpose(1, 2) for q, x in zip(queries, parts, strict=True)]).sum(
        0
    )
    missing = ~block.mask.unsqueeze(1)
    weight = torch.softmax(scores.masked_fill(missing, MASKED), dim=-1).masked_fill(missing, 0.0)
    if keep is not None:
        weight = weight * keep.transpose(0, 1).to(weight.dtype)
    inputs = torch.cat([weight @ x for x in parts], dim=-1)
    return Attended(inputs.transpose(0, 1), weight.sum(-1).t())


def _parts(below: Tensor | None, block: Block, time: TimeEncoding) -> Iterator[Tensor]:
    """Yield the parts of the neighbors' inputs, each `[N, k, width]`."""
    for table, row in ((below, block.neighbor), (block.edge_table, block.edge_row)):
        if table is not None and row is not None:
            yield table.index_select(0, row.flatten()).view(*row.shape, table.shape[1])
    yield time(block.dt)
