"""Opens the placement that a table asks for."""

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

Placement: TypeAlias = Literal["auto", "device", "uva", "host", "disk"]

PLACEMENTS = ("auto", "device", "uva", "host", "disk")


def open_storage(
    placement: str,
    row_bytes: int,
    kind: str,
    *,
    device: str | torch.device | Device | None,
    budget: int | str | None,
    path: str | Path | None,
) -> RowStorage:
    """Return a placement, empty but for a file that is there; `kind` is what rows are, in words."""
    if placement not in PLACEMENTS:
        raise ValueError(f"placement must be one of {', '.join(PLACEMENTS)}, got {placement!r}")
    if placement not in ("auto", "disk") and (budget is not None or path is not None):
        raise ValueError(
            f'budget and path are for placement "auto" or "disk", got one for {placement!r}'
        )
    if placement == "host":
        return HostRows(row_bytes)
    num_bytes = INT64_MAX if budget is None else parse_bytes(budget)

    def on_disk() -> RowStorage:
        file = None if path is None else Path(path)
        return DiskRows(row_bytes, kind, file, min(num_bytes, DEFAULT_BUDGET))

    if placement == "disk" or (path is not None and Path(path).exists()):
        return on_disk()
    gpu = _gpu("cuda" if device is None and placement in ("device", "uva") else device)
    if gpu is None and placement in ("device", "uva"):
        raise ValueError(f"placement {placement!r} needs a GPU as its device, got {str(device)!r}")
    if placement != "auto":
        return _on(gpu, row_bytes)[placement == "uva"]()
    placements: list[Callable[[], RowStorage]] = [lambda: HostRows(row_bytes)]
    if gpu is not None:
        placements = _on(gpu, row_bytes, None if budget is None else num_bytes)
    return AutoRows([*placements, on_disk], num_bytes, gpu)


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
