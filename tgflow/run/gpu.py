"""The device of a run: selection, description and memory."""

from __future__ import annotations

import os
from typing import Any

import torch

from tgflow.cuda.device import Device, device_of
from tgflow.cuda.requirements import CudaError, driver_version, require_cupy, require_device
from tgflow.nn.linear import check_precision
from tgflow.ranks.launch import read_launch
from tgflow.run.config import Config, ConfigError
from tgflow.train.config import ExecutionConfig

CPU = torch.device("cpu")


def use_device(config: Config) -> torch.device:
    """Select the device of the models and make it current in this thread.

    Each rank uses its own device if there are enough: cuda:LOCAL_RANK.
    """
    name = config.run.device
    try:
        check_precision(config.model.precision, torch.device(name))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if name == "cpu":
        if config.graph.device_budget is not None:
            raise ConfigError("--device-budget requires --device cuda")
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


def has_gpu_graph(config: Config) -> bool:
    """Return whether graph, tables and caches are on the model's GPU, if it is on one."""
    return config.run.device != "cpu" and config.tables.cache_policy != "belady"


def graph_gpu(config: Config, device: torch.device) -> Device | None:
    """Return the GPU of graph, tables and caches; None if they are in host memory."""
    return device_of(device) if has_gpu_graph(config) else None


def execution_config(config: Config) -> ExecutionConfig:
    """Return how a trainer computes, with the threads that torch has now."""
    precision, capture = config.model.precision, config.run.capture
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
