"""Attention and memory cells by the native core: float32 on the CPU, one pass over the data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tgflow import _core
from tgflow.plan.batch import Block


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
            _arguments(query, below, frequency, keep, block),
            weight=weight.data_ptr(),
            inputs=inputs.data_ptr(),
            total=total.data_ptr(),
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
        gradients = [None if x is None else torch.empty_like(x) for x in (query, below)]
        _core.attend_backward(
            _arguments(query, below, frequency, keep, ctx.block),
            weight=weight.data_ptr(),
            grad_inputs=grad_inputs.data_ptr(),
            grad_total=grad_total.data_ptr(),
            grad_query=_address(gradients[0]),
            grad_below=_address(gradients[1]),
        )
        return *gradients, None, None, None


class GruStep(torch.autograd.Function):
    """The step of a GRU after its matrix products; takes `gates` over."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, own: Tensor, memory: Tensor) -> Tensor:
        """Return keep * memory + (1 - keep) * tanh(new + reset * own), `[R, dim]`.

        `gates` holds [reset | keep | new] before activation, `[R, 3 * dim]`, and is overwritten;
        `own` is `[R, dim]`; `memory` is `[R, dim]`, and has no gradient.
        """
        out = torch.empty_like(own)
        gru = _gru(own, memory)
        _core.gru_forward(gru, gates=gates.data_ptr(), out=out.data_ptr())
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
            _gru(own, memory),
            gates=gates.data_ptr(),
            grad_out=grad_out.data_ptr(),
            grad_gates=grad_gates.data_ptr(),
            grad_own=grad_own.data_ptr(),
        )
        return grad_gates, grad_own, None


def can_step(memory: Tensor) -> bool:
    """Return whether `GruStep` serves memory like this."""
    return memory.device.type == "cpu" and memory.dtype == torch.float32


def _gru(own: Tensor, memory: Tensor) -> _core.Gru:
    return _core.Gru(
        num_rows=len(own),
        dim=own.shape[1],
        memory=memory.data_ptr(),
        memory_stride=memory.stride(0),
        own=own.data_ptr(),
    )


def can_attend(query: Tensor, block: Block) -> bool:
    """Return whether `Attend` serves such tensors."""
    columns = [block.neighbor, block.mask, block.dt]
    if block.edge_table is not None:
        columns += [block.edge_row, block.edge_table]
    return (
        query.device.type == "cpu"
        and query.dtype == torch.float32
        and all(column.is_contiguous() for column in columns)
    )


def _arguments(
    query: Tensor,
    below: Tensor | None,
    frequency: Tensor,
    keep: Tensor | None,
    block: Block,
) -> _core.Attention:
    size, k = block.mask.shape
    table = block.edge_table
    return _core.Attention(
        num_targets=size,
        k=k,
        num_heads=len(query),
        query=query.data_ptr(),
        shared_query=query.shape[1] == 1 and size != 1,
        below=_address(below),
        num_below=0 if below is None else len(below),
        h_dim=0 if below is None else below.shape[1],
        neighbor=block.neighbor.data_ptr(),
        edge_table=_address(table),
        x_dim=0 if table is None else table.shape[1],
        edge_row=block.edge_row.data_ptr(),
        mask=block.mask.data_ptr(),
        dt=block.dt.data_ptr(),
        frequency=frequency.data_ptr(),
        time_dim=len(frequency),
        keep=_address(keep),
    )


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
