"""Matrix products and linear layers: by the native core on the CPU, by torch elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tgflow.base.choices import Precision
from tgflow.cuda.device import has_device
from tgflow.nn._native import has_bfloat16, multiply

_rounds: ContextVar[bool] = ContextVar("rounds_to_bfloat16", default=False)


def check_precision(precision: Precision, device: torch.device) -> None:
    """Raise ValueError unless products on `device` can have this precision."""
    is_cpu = device.type == "cpu"
    if precision == "bf16" and not is_cpu:
        raise ValueError("--precision bf16 is for the CPU; on a GPU use --precision tf32")
    if precision == "tf32" and is_cpu:
        raise ValueError("--precision tf32 is for a GPU; on the CPU use --precision bf16")
    if precision == "bf16" and not has_bfloat16():
        raise ValueError(
            "--precision bf16 requires a CPU with AVX512_BF16, which this machine lacks; "
            "use --precision fp32"
        )


def product_rates(rows: int = 2000, inner: int = 200, columns: int = 300) -> dict[Precision, float]:
    """Return the measured speed of a product on the CPU, in GFLOP/s; takes some 20 ms."""
    x, weight = torch.ones(rows, inner), torch.ones(inner, columns)
    flops, rates = 2 * x.numel() * weight.shape[1], {}
    precisions: tuple[Precision, ...] = ("fp32", "bf16") if has_bfloat16() else ("fp32",)
    for precision in precisions:
        with torch.no_grad(), product_precision(precision, x.device):
            seconds = []
            for _ in range(4):
                begin = time.perf_counter()
                product(x, weight)
                seconds.append(time.perf_counter() - begin)
        rates[precision] = flops / min(seconds) / 1e9
    return rates


@contextmanager
def product_precision(precision: Precision, device: torch.device) -> Iterator[None]:
    """Context manager for the precision of this thread's products, and of their gradients.

    fp32, the default; bf16 on the CPU, which rounds factors to bfloat16; tf32 on a GPU.
    """
    if device.type == "cpu":
        token = _rounds.set(precision == "bf16")
        try:
            yield
        finally:
            _rounds.reset(token)
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def product(x: Tensor, weight: Tensor, prior: Tensor | None = None) -> Tensor:
    """Return prior + x @ weight; does not synchronize.

    `x` is `[..., A]` for one weight `[A, B]`, or `[H, N, A]` for several `[H, A, B]`; of any
    strides. `prior`, for one weight, is a row `[B]`, or a tensor `[N, B]` that is overwritten by
    the result. In float32 on the CPU a row's bits depend neither on the other rows nor on the
    number of threads, see `csrc/include/tgflow/matrix_product.hpp`.
    """
    if x.dim() != weight.dim():
        rows = product(x.reshape(-1, x.shape[-1]), weight, prior)
        return rows.view(*x.shape[:-1], weight.shape[1])
    if x.is_cpu and x.dtype == weight.dtype == torch.float32:
        if not torch.is_grad_enabled():  # an autograd function takes 15 us a call
            return _multiplied(x, weight, prior, rounds=_rounds.get())
        out: Tensor = _CoreProduct.apply(x, weight, prior)  # type: ignore[no-untyped-call]
        return out
    if x.dim() == 3:
        if not has_device(x.device):
            return torch.bmm(x, weight)
        by_head: Tensor = _ByHead.apply(x, weight)  # type: ignore[no-untyped-call]
        return by_head
    if prior is None:
        return x @ weight
    return torch.addmm(prior, x, weight) if prior.dim() == 1 else prior.addmm_(x, weight)


class Linear(nn.Linear):
    """`torch.nn.Linear` whose product is `product`."""

    def forward(self, x: Tensor, prior: Tensor | None = None) -> Tensor:
        """Return x W^T + b, `[..., out_features]`, of `x` `[..., in_features]`.

        `prior`, `[N, out_features]` for two-dimensional `x`, takes the place of b, and is
        overwritten.
        """
        return product(x, self.weight.t(), self.bias if prior is None else prior)


class _CoreProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, prior: Tensor | None) -> Tensor:
        ctx.rounds, ctx.is_row = _rounds.get(), prior is not None and prior.dim() == 1
        ctx.save_for_backward(x, weight)
        if prior is not None and not ctx.is_row:
            ctx.mark_dirty(prior)
        return _multiplied(x, weight, prior, rounds=ctx.rounds)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_prior = ctx.needs_input_grad
        grad_x = grad_weight = grad_prior = None
        if needs_x:
            grad_x = torch.empty_like(x)
            multiply(a=grad, b=weight.mT, out=grad_x, prior=None, rounds=ctx.rounds)
        if needs_weight:
            grad_weight = torch.empty_like(weight)
            multiply(a=x.mT, b=grad, out=grad_weight, prior=None, rounds=ctx.rounds)
        if needs_prior and ctx.is_row:
            grad_prior = grad.new_empty(1, grad.shape[1])
            ones = grad.new_ones(1, 1).expand(1, len(grad))
            multiply(a=ones, b=grad, out=grad_prior, prior=None, rounds=False)
            grad_prior = grad_prior.squeeze(0)
        elif needs_prior:
            grad_prior = grad
        return grad_x, grad_weight, grad_prior


def _multiplied(x: Tensor, weight: Tensor, prior: Tensor | None, *, rounds: bool) -> Tensor:
    out = prior
    if out is None or out.dim() == 1:
        out = x.new_empty(*x.shape[:-1], weight.shape[-1])
    multiply(a=x, b=weight, out=out, prior=prior, rounds=rounds)
    return out


class _ByHead(torch.autograd.Function):
    """`torch.bmm` of few heads of many rows; the weight gradient is a sum over chunks of rows.

    cuBLAS computes that gradient in few thread blocks, each of which reads all rows: on an H100 it
    was a third of a step of TGN on 4,000 events, and two fifths of one of TGAT.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.bmm(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        chunks = math.gcd(x.shape[1], _MOST_CHUNKS)
        parts, grads = (rows.reshape(len(rows) * chunks, -1, rows.shape[2]) for rows in (x, grad))
        summed = torch.bmm(parts.transpose(1, 2), grads).view(-1, chunks, *weight.shape[1:]).sum(1)
        return torch.bmm(grad, weight.transpose(1, 2)), summed


_MOST_CHUNKS = 64
