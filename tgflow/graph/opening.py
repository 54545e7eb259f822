"""The backend of a graph: in host memory or on a GPU, by the name of the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tgflow.choices import Direction
from tgflow.graph.backend import GraphBackend
from tgflow.graph.host import HostGraph
from tgflow.peers import Shard

if TYPE_CHECKING:
    from tgflow.cuda.device import Device


def open_backend(
    direction: Direction, budget: int | None, device: str | torch.device | Device, shard: Shard
) -> GraphBackend:
    """Return an empty backend for a device; arguments as `TemporalGraph` takes them.

    Raises:
        CudaError: If the GPU cannot be used.
        ValueError: If there is no such kind of device.
    """
    if isinstance(device, str | torch.device):
        kind = str(device).partition(":")[0]
        if kind not in ("cpu", "cuda"):
            raise ValueError(f"device must be 'cpu', 'cuda' or 'cuda:N', got {str(device)!r}")
        if kind == "cpu":
            return HostGraph(direction, budget, shard)
    from tgflow.cuda.device import CudaDevice
    from tgflow.graph.device import DeviceGraph

    if isinstance(device, str | torch.device):
        device = CudaDevice(torch.device(device))
    return DeviceGraph(direction, budget, device, shard)
