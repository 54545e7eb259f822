"""The kernels of each device that tensors are on, loaded once."""

from __future__ import annotations

import torch

from tgflow.cuda.launch import CudaKernels, Kernels

KERNELS: dict[torch.device, Kernels] = {}
"""What is loaded, by device; an entry made by hand serves a device that is no GPU."""


def has_kernels(device: torch.device) -> bool:
    """Return whether kernels serve tensors on `device`."""
    return device.type == "cuda" or device in KERNELS


def kernels_of(device: torch.device) -> Kernels:
    """Return the kernels that serve tensors on a device, named with its index as tensors do.

    Raises:
        CudaError: If what they need is not there; the message says what to install.
    """
    if device not in KERNELS:
        KERNELS[device] = CudaKernels(device)
    return KERNELS[device]
