"""Operations on tensors by the native core on the CPU, and by kernels on a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import softplus

from tgflow import _core
from tgflow.cuda.device import device_of, has_device
from tgflow.graph.batch import Block

if TYPE_CHECKING:
    from tgflow.cuda.launch import Kernels
    from tgflow.cuda.row_lists import RowLists


has_bfloat16, multiply = _core.has_bfloat16, _core.multiply
ReservedMemory = _core.ReservedMemory
version_links, version_slots = _core.version_links, _core.version_slots
attend_projected = _core.attend_projected


class KernelBackend:
    """Operations of `tgflow._core` for models, as kernels on a GPU; does not synchronize."""

    def __init__(self, kernels: Kernels) -> None:
        # only a model on a GPU needs them
        from tgflow.cuda import attention, dropout, gru, loss, row_lists

        self.attend = partial(attention.attend, kernels)
        self.attend_backward = partial(attention.attend_backward, kernels)
        self.gru_forward = partial(gru.gru_forward, kernels)
        self.gru_backward = partial(gru.gru_backward, kernels)
        self.keep_factors = partial(dropout.keep_factors, kernels)
        self.link_bce = partial(loss.link_bce, kernels)
        self.check_finite = partial(loss.check_finite, kernels)
        self.row_lists = row_lists.row_lists
        self.sum_lists = partial(row_lists.sum_rows, kernels)


def backend_of(device: torch.device) -> Any:
    """Return the implementation for `device`: kernels on a GPU, the native core on the CPU."""
    return KernelBackend(device_of(device).kernels) if has_device(device) else _core


class Attend(torch.autograd.Function):
    """`attend_plain` for contiguous float32 tensors on the CPU or a GPU, with all its gradients."""

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
        backend_of(query.device).attend(
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
        query, below, frequency, keep, weight = ctx.saved_tensors
        grad_query = torch.empty_like(query)
        grad_below = None if below is None else torch.empty_like(below)
        backend_of(query.device).attend_backward(
            **_inputs(query, below, frequency, keep, ctx.block),
            weight=weight,
            grad_inputs=grad_inputs.contiguous(),
            grad_total=grad_total.contiguous(),
            grad_query=grad_query,
            grad_below=grad_below,
            **({"lists": ctx.block.neighbor_lists} if has_device(query.device) else {}),
        )
        return grad_query, grad_below, None, None, None


class GruStep(torch.autograd.Function):
    """`gru_step` in float32 on a GPU, in one kernel each way; overwrites `gates`."""

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, own: Tensor, memory: Tensor, flag: Tensor | None
    ) -> Tensor:
        out = torch.empty_like(own)
        backend_of(own.device).gru_forward(memory=memory, own=own, flag=flag, gates=gates, out=out)
        ctx.save_for_backward(gates.detach(), own, memory)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        gates, own, memory = ctx.saved_tensors
        grad_gates, grad_own = torch.empty_like(gates), torch.empty_like(own)
        backend_of(own.device).gru_backward(
            memory=memory,
            own=own,
            gates=gates,
            grad_out=grad_out.contiguous(),
            grad_gates=grad_gates,
            grad_own=grad_own,
        )
        return grad_gates, grad_own, None, None


def gru_step(gates: Tensor, own: Tensor, memory: Tensor, flag: Tensor | None = None) -> Tensor:
    """Return keep * memory + (1 - keep) * tanh(new + reset * own), the end of a GRU's step.

    `flag`: int64 `[R, 1]`: rows of 0 keep their memory; None: no row.
    """
    if has_device(own.device) and own.dtype == torch.float32:
        stepped: Tensor = GruStep.apply(gates, own, memory, flag)  # type: ignore[no-untyped-call]
        return stepped
    reset, keep, new = gates.chunk(3, dim=1)
    new = torch.tanh(new + torch.sigmoid(reset) * own)
    after = torch.lerp(new, memory, torch.sigmoid(keep))
    return after if flag is None else torch.where(flag != 0, after, memory)


class GatherRows(torch.autograd.Function):
    """`x.index_select(0, row)` with a gradient that is deterministic on a GPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, row: Tensor, lists: RowLists | None) -> Tensor:
        ctx.save_for_backward(row)
        ctx.num_rows, ctx.lists = len(x), lists
        return x.index_select(0, row)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (row,), backend = ctx.saved_tensors, backend_of(grad.device)
        lists = backend.row_lists(row, ctx.num_rows) if ctx.lists is None else ctx.lists
        grad_x = grad.new_empty(ctx.num_rows, grad.shape[1])
        backend.sum_lists(rows=grad.contiguous(), lists=lists, out=grad_x)
        return grad_x, None, None


def gather_rows(x: Tensor, row: Tensor, lists: RowLists | None = None) -> Tensor:
    """Return `x[row]`, `[R, D]`, of `x` `[N, D]` and `row`, int64 `[R]`; does not synchronize.

    `lists`: Those of `row` and the N rows, from the batch; None: a gradient on a GPU makes them.
    """
    if not has_device(x.device) or x.dtype != torch.float32:
        return x.index_select(0, row)
    gathered: Tensor = GatherRows.apply(x, row, lists)  # type: ignore[no-untyped-call]
    return gathered


class LinkBce(torch.autograd.Function):
    """Binary cross-entropy of float32 logits on a GPU, in one kernel with its gradient."""

    @staticmethod
    def forward(ctx: Any, positive: Tensor, negative: Tensor) -> Tensor:
        loss: Tensor
        loss, *gradients = backend_of(positive.device).link_bce(positive, negative)
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch._foreach_mul(ctx.saved_tensors, grad))


def link_bce(positive: Tensor, negative: Tensor) -> Tensor:
    """Return the binary cross-entropy of logits `[B]` of events and `[B, m]` of negatives.

    Half of it is the mean over events, half the mean over negatives. Does not synchronize.
    """
    if has_device(positive.device) and positive.dtype == negative.dtype == torch.float32:
        loss: Tensor = LinkBce.apply(positive.contiguous(), negative.contiguous())  # type: ignore[no-untyped-call]
        return loss
    return (softplus(-positive).mean() + softplus(negative).mean()) / 2


def note_non_finite(values: Sequence[Tensor], is_lost: Tensor) -> None:
    """Set `is_lost`, bool `[]` on the device of values, if one is not finite."""
    if has_device(is_lost.device) and all(x.dtype == torch.float32 for x in values):
        flat = [x.detach().contiguous() for x in values]
        backend_of(is_lost.device).check_finite(flat, is_lost)
        return
    flat = [x.detach().flatten() for x in values]
    is_lost.logical_or_(torch.cat(flat).isfinite().all().logical_not_())


def keep_factors(key: Tensor, rate: float, shape: tuple[int, ...]) -> Tensor:
    """Return the factors of dropout at `rate`, float32 `shape`, on the device of `key`."""
    out = torch.empty(shape, device=key.device)
    backend_of(key.device).keep_factors(
        key=key, rate=rate, out=out.view(shape[0], math.prod(shape[1:]))
    )
    return out


def is_fused(x: Tensor) -> bool:
    """Return whether the core computes `x` in one pass where a GPU takes several."""
    return x.is_cpu and x.dtype == torch.float32


class GeluDropout(torch.autograd.Function):
    """Dropout at `rate` of the GELU of contiguous float32 on the CPU; overwrites `x`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, key: Tensor, rate: float) -> Tensor:
        """Return keep * gelu(x); `x` is overwritten by its slope, keep * gelu'(x)."""
        out = torch.empty_like(x)
        _core.gelu_dropout(key=key, rate=rate, x=x.view(-1), out=out.view(-1))
        ctx.save_for_backward(x)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return slope.mul_(grad), None, None


def gelu_dropout(x: Tensor, key: Tensor, rate: float) -> Tensor:
    """Return the GELU of `x`, contiguous float32 on the CPU, with elements dropped by `key`."""
    out: Tensor = GeluDropout.apply(x, key, rate)  # type: ignore[no-untyped-call]
    return out


def can_attend(query: Tensor, block: Block) -> bool:
    columns = (block.neighbor, block.mask, block.dt, block.edge_row, block.edge_table)
    is_served = query.dtype == torch.float32 and (query.is_cpu or has_device(query.device))
    return is_served and all(column is None or column.is_contiguous() for column in columns)


def _inputs(
    query: Tensor, below: Tensor | None, frequency: Tensor, keep: Tensor | None, block: Block
) -> dict[str, Any]:
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
