"""Opens the place that a table asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

from tgflow.tables.auto import AutoRows
from tgflow.tables.disk import DEFAULT_BUDGET, DiskRows
from tgflow.tables.host import HostRows
from tgflow.tables.protocols import RowStorage
from tgflow.units import INT64_MAX, parse_bytes

if TYPE_CHECKING:
    from tgflow.cuda.device import Device

Place: TypeAlias = Literal["auto", "device", "uva", "host", "disk"]

PLACES = ("auto", "device", "uva", "host", "disk")


def open_storage(
    place: str,
    row_bytes: int,
    kind: str,
    *,
    device: str | torch.device | Device | None,
    budget: int | str | None,
    path: str | Path | None,
) -> RowStorage:
    """Return a place, empty but for a file that is there; `kind` is what rows are, in words."""
    if place not in PLACES:
        raise ValueError(f"place must be one of {', '.join(PLACES)}, got {place!r}")
    if place not in ("auto", "disk") and (budget is not None or path is not None):
        raise ValueError(f'budget and path are for place "auto" or "disk", got one for {place!r}')
    if place == "host":
        return HostRows(row_bytes)
    num_bytes = INT64_MAX if budget is None else parse_bytes(budget)

    def on_disk() -> RowStorage:
        file = None if path is None else Path(path)
        return DiskRows(row_bytes, kind, file, min(num_bytes, DEFAULT_BUDGET))

    if place == "disk" or (path is not None and Path(path).exists()):
        return on_disk()
    gpu = _gpu("cuda" if device is None and place in ("device", "uva") else device)
    if gpu is None and place in ("device", "uva"):
        raise ValueError(f"place {place!r} needs a GPU as its device, got {str(device)!r}")
    if place != "auto":
        return _on(gpu, row_bytes)[place == "uva"]()
    places: list[Callable[[], RowStorage]] = [lambda: HostRows(row_bytes)]
    if gpu is not None:
        places = _on(gpu, row_bytes, None if budget is None else num_bytes)
    return AutoRows([*places, on_disk], num_bytes, gpu)


def _on(
    gpu: Device | None, row_bytes: int, budget: int | None = None
) -> list[Callable[[], RowStorage]]:
    from tgflow.tables.device import DeviceRows
    from tgflow.tables.uva import UvaRows

    assert gpu is not None
    return [lambda: DeviceRows(row_bytes, gpu, budget), lambda: UvaRows(row_bytes, gpu)]


def _gpu(device: str | torch.device | Device | None) -> Device | None:
    """Return the GPU of a device; None for the CPU."""
    from tgflow.cuda.device import CudaDevice

    if device is None or (isinstance(device, str | torch.device) and str(device) == "cpu"):
        return None
    if isinstance(device, str | torch.device):
        return CudaDevice(torch.device(device))
    return device
