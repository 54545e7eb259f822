"""The device that tensors are on, by its name in torch: opened once."""

from __future__ import annotations

import torch

from tgflow.cuda.device import CudaDevice, Device

_devices: dict[torch.device, Device] = {}


def device_of(device: torch.device) -> Device:
    """Return the device that tensors of `device` are on.

    Raises:
        CudaError: If it cannot be used; the message says what is missing.
    """
    if device not in _devices:
        _devices[device] = CudaDevice(device)
    return _devices[device]


def has_device(device: torch.device) -> bool:
    """Return whether kernels serve tensors of `device`: on CUDA's, and on those registered."""
    return device.type == "cuda" or device in _devices


def register_device(device: Device) -> None:
    """Have `device_of` return a device that is not CUDA's for its tensors."""
    _devices[device.device] = device
