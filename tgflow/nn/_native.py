"""Attention and memory cells by the native core: float32 on the CPU, one pass over the data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tgflow import _core
from tgflow.batch import Block


class Attend(torch.autograd.Function):
    """`attend_plain` for contiguous float32 tensors on the CPU, with all its gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        below: Tensor | None,
        frequency: Tensor,
        keep: Tensor | None,
        block: Block,
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted inputs `[H, N, D]` and the sums of weights `[H, N]`."""
        heads, _, width = query.shape
        size, k = block.mask.shape
        weight, inputs = query.new_empty(heads, size, k), query.new_empty(heads, size, width)
        total = query.new_empty(heads, size)
        _core.attend(
            **_inputs(query, below, frequency, keep, block),
            weight=weight,
            inputs=inputs,
            total=total,
        )
        ctx.save_for_backward(query, below, frequency, keep, weight)
        ctx.block = block
        return inputs, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_inputs: Tensor, grad_total: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of query and below."""
        query, below, frequency, keep, weight = ctx.saved_tensors
        grad_inputs, grad_total = grad_inputs.contiguous(), grad_total.contiguous()
        grad_query = torch.empty_like(query)
        grad_below = None if below is None else torch.empty_like(below)
        _core.attend_backward(
            **_inputs(query, below, frequency, keep, ctx.block),
            weight=weight,
            grad_inputs=grad_inputs,
            grad_total=grad_total,
            grad_query=grad_query,
            grad_below=grad_below,
        )
        return grad_query, grad_below, None, None, None


class GruStep(torch.autograd.Function):
    """The step of a GRU after its matrix products; takes `gates` over."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, own: Tensor, memory: Tensor) -> Tensor:
        """Return keep * memory + (1 - keep) * tanh(new + reset * own), `[R, dim]`.

        `gates` holds [reset | keep | new] before activation, `[R, 3 * dim]`, and is overwritten;
        `own` is `[R, dim]`; `memory` is `[R, dim]`, and has no gradient.
        """
        out = torch.empty_like(own)
        _core.gru_forward(memory=memory, own=own, gates=gates, out=out)
        ctx.save_for_backward(gates.detach(), own, memory)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients of gates and own."""
        gates, own, memory = ctx.saved_tensors
        grad_out, grad_gates, grad_own = (
            grad_out.contiguous(),
            torch.empty_like(gates),
            torch.empty_like(own),
        )
        _core.gru_backward(
            memory=memory,
            own=own,
            gates=gates,
            grad_out=grad_out,
            grad_gates=grad_gates,
            grad_own=grad_own,
        )
        return grad_gates, grad_own, None


def can_step(memory: Tensor) -> bool:
    """Return whether `GruStep` serves memory like this."""
    return memory.device.type == "cpu" and memory.dtype == torch.float32


def can_attend(query: Tensor, block: Block) -> bool:
    """Return whether `Attend` serves such tensors."""
    columns = (block.neighbor, block.mask, block.dt, block.edge_row, block.edge_table)
    return (
        query.device.type == "cpu"
        and query.dtype == torch.float32
        and all(column is None or column.is_contiguous() for column in columns)
    )


def _inputs(
    query: Tensor,
    below: Tensor | None,
    frequency: Tensor,
    keep: Tensor | None,
    block: Block,
) -> dict[str, Any]:
    """Return what both passes read, by the core's names."""
    return {
        "query": query,
        "below": below,
        "neighbor": block.neighbor,
        "edge_table": block.edge_table,
        "edge_row": block.edge_row,
        "mask": block.mask,
        "dt": block.dt,
        "frequency": frequency,
        "keep": keep,
    }
