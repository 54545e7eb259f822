"""Placements of tables by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch

from tgflow.base.units import INT64_MAX, parse_bytes
from tgflow.graph.tables.disk import DEFAULT_BUDGET, DiskRows
from tgflow.graph.tables.host import HostRows, memory_limit
from tgflow.graph.tables.table import RowStorage

if TYPE_CHECKING:
    from tgflow.cuda.device import Device

Placement: TypeAlias = Literal["auto", "device", "uva", "host", "disk"]

PLACEMENTS: tuple[Placement, ...] = get_args(Placement)

_PINNED_PART = 2
"""Placement "auto" pins at most the host's memory divided by this."""


Place: TypeAlias = tuple[Callable[[], RowStorage], int]
"""Opens a placement; and the bytes of rows beyond which they move to the next one."""


def places_of(
    placement: Placement,
    row_bytes: int,
    kind: str,
    *,
    device: str | torch.device | Device | None,
    budget: int | str | None,
    path: str | Path | None,
) -> list[Place]:
    """Return the placements that rows move through; `kind` describes the rows in words."""
    if placement not in PLACEMENTS:
        raise ValueError(f"placement must be one of {', '.join(PLACEMENTS)}, got {placement!r}")
    if placement not in ("auto", "disk") and (budget is not None or path is not None):
        raise ValueError(
            f'budget and path are for placement "auto" or "disk", got one for {placement!r}'
        )
    num_bytes = INT64_MAX if budget is None else parse_bytes(budget)
    file = None if path is None else Path(path)
    on_disk = partial(DiskRows, row_bytes, kind, file, min(num_bytes, DEFAULT_BUDGET)), INT64_MAX
    if placement == "disk" or (file is not None and file.exists()):
        return [on_disk]
    in_host = partial(HostRows, row_bytes)
    if placement == "host":
        return [(in_host, INT64_MAX)]
    gpu = _gpu("cuda" if device is None and placement != "auto" else device)
    if gpu is None and placement != "auto":
        raise ValueError(f"placement {placement!r} needs a GPU as its device, got {str(device)!r}")
    if gpu is None:
        return [(in_host, num_bytes), on_disk]
    from tgflow.graph.tables.gpu_rows import DeviceRows, UvaRows

    on_gpu = partial(DeviceRows, row_bytes, gpu, None if budget is None else num_bytes)
    pinned = partial(UvaRows, row_bytes, gpu)
    if placement != "auto":
        return [(on_gpu if placement == "device" else pinned, INT64_MAX)]
    return [(on_gpu, num_bytes), (pinned, memory_limit() // _PINNED_PART), on_disk]


def _gpu(device: str | torch.device | Device | None) -> Device | None:
    from tgflow.cuda.device import device_of

    if device is None or (isinstance(device, str | torch.device) and str(device) == "cpu"):
        return None
    if isinstance(device, str | torch.device):
        return device_of(torch.device(device))
    return device
