"""The kernels of each device that tensors are on, loaded once."""

from __future__ import annotations

from functools import cache

import torch

from tgflow.cuda.launch import CudaKernels, Kernels


@cache
def kernels_of(device: torch.device) -> Kernels:
    """Return the kernels that serve tensors of a CUDA device.

    Raises:
        CudaError: If what they need is not there; the message says what to install.
    """
    return CudaKernels(device)
