"""Launches the dropout kernel (csrc/cuda/dropout.cu)."""

from __future__ import annotations

import ctypes
from ctypes import c_double as _double

import torch
from torch import Tensor

from tgflow.cuda.arguments import Arguments
from tgflow.cuda.launch import Kernels
from tgflow.cuda.structs import words

_THREADS = 256
_WORDS = 4
_MOST_BLOCKS = 1024


class KeepFactors(ctypes.Structure):
    """Arguments of the kernel (cuda/dropout.cu)."""

    _fields_ = (*words("key"), ("rate", _double), *words("num_rows row_size out"))


def keep_factors(kernels: Kernels, *, key: Tensor, rate: float, out: Tensor) -> None:
    """Fill `out` with 0 with probability `rate` and 1 / (1 - rate) elsewhere, as on the CPU.

    The kernel reads the key when it runs.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"rate must be at least 0 and less than 1, got {rate}")
    given = Arguments.beside("key", key)
    addresses = (
        given.address("key", key, torch.int64, 1),
        given.address("out", out, torch.float32, "rows", "size"),
    )
    num_rows, row_size = out.shape
    asked = KeepFactors(addresses[0], rate, num_rows, row_size, addresses[1])
    draws = num_rows * -(-row_size // _WORDS)
    if draws > 0:
        kernels.launch("keep_factors", min(-(-draws // _THREADS), _MOST_BLOCKS), _THREADS, asked)
