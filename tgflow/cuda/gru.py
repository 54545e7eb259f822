"""Launches the kernels of a GRU's step (csrc/cuda/gru.cu), with the native core's arguments."""

from __future__ import annotations

import ctypes
from ctypes import c_uint64 as _word

import torch
from torch import Tensor

from tgflow.cuda.arguments import Arguments
from tgflow.cuda.launch import Kernels
from tgflow.cuda.row_lists import lanes_width
from tgflow.cuda.structs import words

_WARPS = 8
_MOST_BLOCKS = 1 << 20


class _Gru(ctypes.Structure):
    """One step (cuda/gru.cu)."""

    _fields_ = words("num_rows dim memory memory_stride own")


def gru_forward(
    kernels: Kernels, *, memory: Tensor, own: Tensor, gates: Tensor, out: Tensor
) -> None:
    """Activate `gates`, and fill `out` with the memory after the step, as the native core does.

    Args:
        kernels: Where to run; does not synchronize.
        memory: float32 `[R, dim]`, whose rows may lie apart.
        own: float32 `[R, dim]`.
        gates: [reset | keep | new] before their activations, and after them on return, float32
            `[R, 3 * dim]`.
        out: float32 `[R, dim]`.

    Raises:
        ValueError: If a tensor is of another dtype, shape or device.
    """
    given = Arguments.beside("memory", memory)
    gru = _checked(given, memory, own)
    pointers = _addresses(given, gru, gates=gates, out=out)
    _launch(kernels, "gru_forward", gru, *pointers)


def gru_backward(
    kernels: Kernels,
    *,
    memory: Tensor,
    own: Tensor,
    gates: Tensor,
    grad_out: Tensor,
    grad_gates: Tensor,
    grad_own: Tensor,
) -> None:
    """Fill the gradients of what `gates` held before the step, and of `own`.

    Args:
        kernels: Where to run; does not synchronize.
        memory: As for `gru_forward`.
        own: Likewise.
        gates: As `gru_forward` left them.
        grad_out: float32 `[R, dim]`.
        grad_gates: float32 `[R, 3 * dim]`.
        grad_own: float32 `[R, dim]`.

    Raises:
        ValueError: If a tensor is of another dtype, shape or device.
    """
    given = Arguments.beside("memory", memory)
    gru = _checked(given, memory, own)
    pointers = _addresses(
        given, gru, gates=gates, grad_out=grad_out, grad_gates=grad_gates, grad_own=grad_own
    )
    _launch(kernels, "gru_backward", gru, *pointers)


def _checked(given: Arguments, memory: Tensor, own: Tensor) -> _Gru:
    at_memory, stride = given.rows("memory", memory, torch.float32, "R", "dim")
    num_rows, dim = memory.shape
    return _Gru(
        num_rows, dim, at_memory, stride, given.address("own", own, torch.float32, num_rows, dim)
    )


def _addresses(given: Arguments, gru: _Gru, **tensors: Tensor) -> list[_word]:
    """Return the tensors' addresses, those of gates three times as wide."""
    return [
        _word(
            given.address(
                name, tensor, torch.float32, gru.num_rows, gru.dim * (3 if "gates" in name else 1)
            )
        )
        for name, tensor in tensors.items()
    ]


def _launch(kernels: Kernels, kind: str, gru: _Gru, *pointers: _word) -> None:
    if gru.num_rows * gru.dim == 0:
        return
    addresses = [gru.memory, gru.own, *(pointer.value or 0 for pointer in pointers)]
    name = f"{kind}_by_{lanes_width([gru.dim, gru.memory_stride], addresses)}"
    blocks = min(-(-gru.num_rows // _WARPS), _MOST_BLOCKS)
    kernels.launch(name, blocks, 32 * _WARPS, gru, *pointers)
