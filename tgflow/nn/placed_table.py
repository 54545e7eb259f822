"""Rows of node memory in a table of their own, outside the model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tgflow.cache import CachedTable, cached
from tgflow.cuda.devices import device_of
from tgflow.cuda.requirements import require_device
from tgflow.tables import FeatureTable
from tgflow.tables.placements import Placement


class PlacedTable(nn.Module):
    """Rows in a `FeatureTable`, made with the first of them: for the device of the model by then.

    A model is made on the CPU and moved. What it keeps in a GPU's memory, such as a cache, belongs
    where its parameters are, and not to any GPU that the machine has.

    Args:
        dim: Width of a row.
        placement: As `FeatureTable` has them.
        cache: Bytes of an LRU cache in front, on the GPU of the model; None for none.
    """

    dtype = torch.float32
    _device: Tensor

    def __init__(self, dim: int, placement: Placement, cache: int | str | None) -> None:
        super().__init__()
        self.dim = dim
        self._placement, self._cache = placement, cache
        self._table: FeatureTable | CachedTable | None = None
        self.register_buffer("_device", torch.empty(0), persistent=False)  # goes with the model

    @property
    def table(self) -> FeatureTable | CachedTable:
        """The table, which is made if it is not there.

        Raises:
            CudaError: If the placement needs a GPU and none can be used.
            ValueError: If there is a cache, and the model is on the CPU.
        """
        if self._table is None:
            at = self._device.device
            gpu = None if at.type == "cpu" else device_of(at)
            if self._cache is not None and gpu is None:
                raise ValueError(
                    "memory_cache requires a model on a GPU; move the model there before its first "
                    "event, or leave memory_cache out"
                )
            on = None if self._placement == "host" else gpu
            table = FeatureTable(self.dim, placement=self._placement, device=on)
            has_cache = self._cache is not None
            self._table = cached(table, bytes=self._cache, device=gpu) if has_cache else table
        return self._table

    @property
    def placement(self) -> str:
        """Where the rows are, or will be."""
        return self._placement if self._table is None else self._table.placement

    def __len__(self) -> int:
        return 0 if self._table is None else len(self._table)

    def append(self, rows: Tensor) -> int:
        """Add rows and return the first one's id."""
        return self.table.append(rows)

    def gather(self, ids: Tensor) -> Tensor:
        """Return rows by id, on the ids' device."""
        return self.table.gather(ids)

    def scatter_(self, ids: Tensor, rows: Tensor) -> None:
        """Overwrite the rows of ids that each come once."""
        self.table.scatter_(ids, rows)

    def read(self, start: int, stop: int) -> Tensor:
        """Return neighboring rows on the CPU."""
        return self.table.read(start, stop)


def placed_table(dim: int, placement: Placement, cache: int | str | None) -> PlacedTable:
    """Return an empty table, as `memory_table`.

    Raises:
        CudaError: If the placement needs a GPU and none can be used.
    """
    if placement in ("device", "uva"):
        require_device(torch.device("cuda"))
    return PlacedTable(dim, placement, cache)
