"""Ring buffer of embeddings that later batches reuse instead of recomputing them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tgflow.graph.batch import Block, ReusedRows, ReuseRecord


class RingRows(NamedTuple):
    """Index of the rows in a ring, in ascending order of their batches; int64 `[S]` each."""

    number: Tensor
    """Batch that computed each row."""
    nodes: Tensor
    t: Tensor
    slot: Tensor


class EmbeddingRing:
    """Rows of one layer in slots, which `tgflow.plan.reuse` assigns.

    A reused row is a constant without gradient. A row that is computed although it could have been
    reused has its gradient scaled up to represent the reused ones, see `ReusedRows.weight`.
    """

    def __init__(self, dim: int, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        self.capacity = capacity
        self.rows = torch.zeros(capacity + 1, dim, dtype=dtype, device=device)
        """`[capacity + 1, dim]`; padding of a batch is written to the last row."""
        self.number = torch.full((capacity,), -1)
        """int64 `[capacity]`, on the host, like the following ones: the batch that computed each
        row."""
        self.nodes, self.t = torch.zeros(2, capacity, dtype=torch.int64).unbind(0)

    def note(self, record: ReuseRecord) -> None:
        """Record the batch and queries of the rows that `completed` stores."""
        self.number[record.slots] = record.number
        self.nodes[record.slots] = record.nodes
        self.t[record.slots] = record.t

    def completed(self, computed: Tensor, reused: ReusedRows) -> Tensor:
        """Return all rows of a frontier, and store those that later batches may reuse."""
        rows: Tensor = _Weighted.apply(computed, reused.weight)  # type: ignore[no-untyped-call]
        if len(reused.slot):
            rows = torch.cat([rows, self.rows.index_select(0, reused.slot)])
        if len(reused.stored):
            with torch.no_grad():
                self.rows.index_copy_(0, reused.stored, computed[: len(reused.stored)])
        return rows

    def rows_since(self, number: int) -> RingRows:
        """Return the index of its rows of batches from `number` on."""
        slot = (self.number >= number).nonzero().flatten()
        slot = slot[self.number[slot].argsort(stable=True)]
        return RingRows(self.number[slot], self.nodes[slot], self.t[slot], slot)

    def restore(self, held: RingRows, rows: Tensor) -> None:
        self.number.fill_(-1)
        self.number[held.slot] = held.number
        self.nodes[held.slot] = held.nodes
        self.t[held.slot] = held.t
        self.rows.index_copy_(0, held.slot.to(self.rows.device), rows.to(self.rows.device))

    def hook(self, layer: object, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """Complete a layer's output for (rows below, block), as a forward hook."""
        block: Block = inputs[1]
        return None if block.reused is None else self.completed(output, block.reused)


class _Weighted(torch.autograd.Function):
    """Identity whose gradients are multiplied by a weight per row."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        return grad * weight.unsqueeze(1), None
