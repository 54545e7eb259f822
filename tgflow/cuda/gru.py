"""Launches the GRU kernels (csrc/cuda/gru.cu), with the native core's arguments."""

from __future__ import annotations

import ctypes

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

    _fields_ = words("num_rows dim memory memory_stride own flag flag_stride")


def gru_forward(
    kernels: Kernels,
    *,
    memory: Tensor,
    own: Tensor,
    flag: Tensor | None,
    gates: Tensor,
    out: Tensor,
) -> None:
    """Activate `gates`, and fill `out` with the next memory, as the native core does.

    `gates` are [reset | keep | new], `[R, 3 * dim]`. Rows whose `flag` is 0 keep their memory;
    None: no row does. Rows of memory and flag may be strided.
    """
    _launch(kernels, "gru_forward", memory, own, flag, gates=gates, out=out)


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
    """Fill the gradients of the gates before activation, and of `own`; `gates` are activated."""
    pointers = {"grad_out": grad_out, "grad_gates": grad_gates, "grad_own": grad_own}
    _launch(kernels, "gru_backward", memory, own, None, gates=gates, **pointers)


def _launch(
    kernels: Kernels, kind: str, memory: Tensor, own: Tensor, flag: Tensor | None, **tensors: Tensor
) -> None:
    given = Arguments.beside("memory", memory)
    at_memory, stride = given.rows("memory", memory, torch.float32, "R", "dim")
    rows, dim = memory.shape
    at_own = given.address("own", own, torch.float32, rows, dim)
    at_flag = (0, 0) if flag is None else given.rows("flag", flag, torch.int64, rows, 1)
    addresses = [
        given.address(name, tensor, torch.float32, rows, dim * (3 if "gates" in name else 1))
        for name, tensor in tensors.items()
    ]
    if rows * dim == 0:
        return
    name = f"{kind}_by_{lanes_width([dim, stride], [at_memory, at_own, *addresses])}"
    gru = _Gru(rows, dim, at_memory, stride, at_own, *at_flag)
    blocks = min(-(-rows // _WARPS), _MOST_BLOCKS)
    kernels.launch(name, blocks, 32 * _WARPS, gru, *map(ctypes.c_uint64, addresses))
