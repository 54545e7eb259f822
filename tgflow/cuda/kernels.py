"""The kernels of each device that tensors are on, loaded once."""

from __future__ import annotations

import torch

from tgflow.cuda.launch import CudaKernels, Kernels

_kernels: dict[torch.device, Kernels] = {}


def kernels_of(device: torch.device) -> Kernels:
    """Return the kernels that serve tensors of a device.

    Raises:
        CudaError: If what they need is not there; the message says what to install.
    """
    if device not in _kernels:
        _kernels[device] = CudaKernels(device)
    return _kernels[device]


def register_kernels(device: torch.device, kernels: Kernels) -> None:
    """Let `kernels` serve the tensors of a device that is not CUDA's."""
    _kernels[device] = kernels
