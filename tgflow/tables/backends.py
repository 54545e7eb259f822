"""Opens the placement that a table asks for."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, assert_never, get_args

import torch

from tgflow.tables.auto import AutoRows
from tgflow.tables.disk import DEFAULT_BUDGET, DiskRows
from tgflow.tables.host import HostRows, memory_limit
from tgflow.tables.protocols import RowStorage
from tgflow.units import INT64_MAX, parse_bytes

if TYPE_CHECKING:
    from tgflow.cuda.device import Device

Placement: TypeAlias = Literal["auto", "device", "uva", "host", "disk"]

PLACEMENTS: tuple[Placement, ...] = get_args(Placement)

_PINNED_PART = 2
"""A table that goes where there is room pins at most the host's memory divided by this."""


def open_storage(
    placement: Placement,
    row_bytes: int,
    kind: str,
    *,
    device: str | torch.device | Device | None,
    budget: int | str | None,
    path: str | Path | None,
) -> RowStorage:
    """Return a placement, empty but for a file that is there; `kind` is what rows are, in words."""
    _check(placement, budget, path)
    num_bytes = INT64_MAX if budget is None else parse_bytes(budget)

    def on_disk() -> RowStorage:
        file = None if path is None else Path(path)
        return DiskRows(row_bytes, kind, file, min(num_bytes, DEFAULT_BUDGET))

    def in_host_memory() -> RowStorage:
        return HostRows(row_bytes)

    if path is not None and Path(path).exists():
        return on_disk()
    match placement:
        case "host":
            return in_host_memory()
        case "disk":
            return on_disk()
        case "device":
            return _on_device(_needed_gpu(placement, device), row_bytes, None)
        case "uva":
            return _in_pinned_memory(_needed_gpu(placement, device), row_bytes)
        case "auto":
            gpu = _gpu(device)
            if gpu is None:
                return AutoRows([(in_host_memory, num_bytes), (on_disk, INT64_MAX)], None)
            of_device = None if budget is None else num_bytes
            on_gpu = partial(_on_device, gpu, row_bytes, of_device)
            pinned = partial(_in_pinned_memory, gpu, row_bytes)
            places = [(on_gpu, num_bytes), (pinned, memory_limit() // _PINNED_PART)]
            return AutoRows([*places, (on_disk, INT64_MAX)], gpu)
        case _:
            assert_never(placement)


def _check(placement: str, budget: int | str | None, path: str | Path | None) -> None:
    if placement not in PLACEMENTS:
        raise ValueError(f"placement must be one of {', '.join(PLACEMENTS)}, got {placement!r}")
    if placement not in ("auto", "disk") and (budget is not None or path is not None):
        raise ValueError(
            f'budget and path are for placement "auto" or "disk", got one for {placement!r}'
        )


def _on_device(gpu: Device, row_bytes: int, budget: int | None) -> RowStorage:
    from tgflow.tables.device import DeviceRows

    return DeviceRows(row_bytes, gpu, budget)


def _in_pinned_memory(gpu: Device, row_bytes: int) -> RowStorage:
    from tgflow.tables.uva import UvaRows

    return UvaRows(row_bytes, gpu)


def _needed_gpu(placement: str, device: str | torch.device | Device | None) -> Device:
    gpu = _gpu("cuda" if device is None else device)
    if gpu is None:
        raise ValueError(f"placement {placement!r} needs a GPU as its device, got {str(device)!r}")
    return gpu


def _gpu(device: str | torch.device | Device | None) -> Device | None:
    """Return the GPU of a device; None for the CPU."""
    from tgflow.cuda.device import CudaDevice

    if device is None or (isinstance(device, str | torch.device) and str(device) == "cpu"):
        return None
    if isinstance(device, str | torch.device):
        return CudaDevice(torch.device(device))
    return device
