"""Opens the place that a table asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

from tgflow.tables.auto import AutoRows
from tgflow.tables.disk import DEFAULT_BUDGET, DiskRows
from tgflow.tables.host import HostRows
from tgflow.tables.rows import Rows
from tgflow.units import INT64_MAX, parse_bytes

if TYPE_CHECKING:
    from tgflow.cuda.machine import Machine

Place: TypeAlias = Literal["auto", "device", "uva", "host", "disk"]

PLACES = ("auto", "device", "uva", "host", "disk")


def open_rows(
    place: str,
    row_bytes: int,
    kind: str,
    *,
    device: str | torch.device | Machine | None,
    budget: int | str | None,
    path: str | Path | None,
) -> Rows:
    """Return a place, empty but for a file that is there; `kind` is what rows are, in words."""
    if place not in PLACES:
        raise ValueError(f"place must be one of {', '.join(PLACES)}, got {place!r}")
    if place not in ("auto", "disk") and (budget is not None or path is not None):
        raise ValueError(f'budget and path are for place "auto" or "disk", got one for {place!r}')
    if place == "host":
        return HostRows(row_bytes)
    num_bytes = INT64_MAX if budget is None else parse_bytes(budget)

    def on_disk() -> Rows:
        file = None if path is None else Path(path)
        return DiskRows(row_bytes, kind, file, min(num_bytes, DEFAULT_BUDGET))

    if place == "disk" or (path is not None and Path(path).exists()):
        return on_disk()
    machine = _machine("cuda" if device is None and place in ("device", "uva") else device)
    if machine is None and place in ("device", "uva"):
        raise ValueError(f"place {place!r} needs a GPU as its device, got {str(device)!r}")
    if place != "auto":
        return _on(machine, row_bytes)[place == "uva"]()
    places: list[Callable[[], Rows]] = [lambda: HostRows(row_bytes)]
    if machine is not None:
        places = _on(machine, row_bytes, None if budget is None else num_bytes)
    return AutoRows([*places, on_disk], num_bytes, machine)


def _on(
    machine: Machine | None, row_bytes: int, budget: int | None = None
) -> list[Callable[[], Rows]]:
    from tgflow.tables.device import DeviceRows
    from tgflow.tables.uva import UvaRows

    assert machine is not None
    return [lambda: DeviceRows(row_bytes, machine, budget), lambda: UvaRows(row_bytes, machine)]


def _machine(device: str | torch.device | Machine | None) -> Machine | None:
    """Return the machine of a device; None for the CPU."""
    from tgflow.cuda.machine import CudaMachine

    if device is None or (isinstance(device, str | torch.device) and str(device) == "cpu"):
        return None
    if isinstance(device, str | torch.device):
        return CudaMachine(torch.device(device))
    return device
