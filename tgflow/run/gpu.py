"""The device of a run: selection, description and memory."""

from __future__ import annotations

import os
from typing import Any

import torch

from tgflow.base.choices import Precision
from tgflow.cuda.requirements import CudaError, driver_version, require_cupy, require_device
from tgflow.nn.linear import check_precision
from tgflow.ranks.launch import read_launch
from tgflow.run.config import ConfigError
from tgflow.train.config import ExecutionConfig

CPU = torch.device("cpu")


def use_device(name: str, precision: Precision) -> torch.device:
    """Select the device `name` of the models and make it current in this thread.

    Each rank uses its own device if there are enough: cuda:LOCAL_RANK.
    """
    try:
        check_precision(precision, torch.device(name))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if name == "cpu":
        return CPU
    wanted, launch, num_devices = torch.device(name), read_launch(os.environ), 0
    if launch is not None and wanted.index is None:
        num_devices = torch.cuda.device_count()
    if launch is not None and num_devices:
        wanted = torch.device("cuda", launch.local_rank % num_devices)
    try:
        device = require_device(wanted)
        require_cupy(device)
    except CudaError as error:
        raise ConfigError(f"--device {name}: {error}") from None
    torch.cuda.set_device(device)
    return device


def execution_config(precision: Precision, *, capture: bool) -> ExecutionConfig:
    beside = torch.get_num_threads() > 1
    return ExecutionConfig(precision=precision, capture=capture, beside=beside)


def describe_device(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {}
    properties = torch.cuda.get_device_properties(device)
    return {"gpu": properties.name, "driver": driver_version(), "cuda": torch.version.cuda}


def device_figures(device: torch.device) -> dict[str, int]:
    """Return current and peak bytes of tensors on a GPU; empty for the CPU."""
    if device.type != "cuda":
        return {}
    return {
        "gpu_bytes": torch.cuda.memory_allocated(device),
        "gpu_peak_bytes": torch.cuda.max_memory_allocated(device),
    }
