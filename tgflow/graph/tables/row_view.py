"""A read-only selection of a table's rows, as a table of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tgflow.graph.tables.table import Table, TableInFront


class RowView(TableInFront):
    """The rows `ids` of a table, int64 `[N]`, in that order, without a copy. Read-only."""

    def __init__(self, table: Table, ids: Tensor) -> None:
        self.table = table
        """Table with the rows."""
        self._ids = torch.cat([ids.cpu(), torch.tensor([-1])])  # so that -1 is -1
        self._there: dict[torch.device, Tensor] = {}
        """Copies of the ids on GPUs that have gathered."""

    def __len__(self) -> int:
        return len(self._ids) - 1

    @property
    def nbytes(self) -> int:
        return self._ids.nbytes + sum(ids.nbytes for ids in self._there.values())

    @property
    def file(self) -> Path | None:
        """None: the file of the base table also has other rows."""
        return None

    def describe(self) -> dict[str, Any]:
        return self.table.describe() | {"rows": len(self)}

    def ids_of(self, ids: Tensor) -> Tensor:
        """Map this view's ids, int64 of any shape, to ids of the base table; -1 to -1.

        Does not synchronize for ids on a GPU after the first call there. An id that is not below
        `len(self)` raises IndexError on the CPU, and becomes -1 on a GPU.
        """
        size = len(self)
        if ids.is_cpu and ids.numel() > 0 and int(ids.max()) >= size:
            raise IndexError(f"id {int(ids.max())} is not in a table of {size} rows")
        rows = torch.where((ids < 0) | (ids >= size), size, ids).reshape(-1)
        there = self._ids if ids.is_cpu else self._there.get(ids.device)
        if there is None:
            there = self._there[ids.device] = self._ids.to(ids.device)
        return there.index_select(0, rows).reshape(ids.shape)

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        return self.table.gather(self.ids_of(ids), out)

    def read(self, start: int, stop: int) -> Tensor:
        return self.gather(torch.arange(start, stop))

    def check(self, rows: Tensor) -> None:
        raise ValueError("these rows are a selection of another table's: append to that one")

    def append(self, rows: Tensor) -> int:
        self.check(rows)
        raise AssertionError

    def truncate(self, size: int) -> None:
        self.check(torch.empty(0))

    def forget(self, first: int) -> None:
        """Do nothing: the rows belong to their table."""

    def close(self) -> None:
        """Do nothing: the rows belong to their table."""
