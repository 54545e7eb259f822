"""A read-only selection of a table's rows, as a table of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tgflow.graph.tables.table import Table, TableInFront


class RowView(TableInFront):
    """The rows `ids` of a table, in that order, without a copy. Read-only.

    Args:
        table: Table with the rows.
        ids: Their ids there, int64 `[N]`, each below `len(table)`; row `i` of this table is the row
            of `ids[i]`.
    """

    def __init__(self, table: Table, ids: Tensor) -> None:
        self.table = table
        """Table with the rows."""
        self._ids = torch.cat(
            [ids.cpu(), torch.full((1,), -1, dtype=torch.int64)]
        )  # so that -1 is -1
        self._there: dict[torch.device, Tensor] = {}
        """Copies of the ids on GPUs that have gathered."""

    def __len__(self) -> int:
        return len(self._ids) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of memory held: the ids."""
        return self._ids.nbytes + sum(ids.nbytes for ids in self._there.values())

    @property
    def file(self) -> Path | None:
        """None: the file of the base table also has other rows."""
        return None

    def describe(self) -> dict[str, Any]:
        """Return the description of the base table, with this view's number of rows."""
        return self.table.describe() | {"rows": len(self)}

    def ids_of(self, ids: Tensor) -> Tensor:
        """Map this view's ids, int64 of any shape, to ids of the base table; -1 to -1.

        Does not synchronize for ids on a GPU after the first call there; an id that is not below
        `len(self)` becomes -1 there.

        Raises:
            IndexError: If an id on the CPU is not below `len(self)`.
        """
        size = len(self)
        if ids.is_cpu and ids.numel() > 0 and int(ids.max()) >= size:
            raise IndexError(f"id {int(ids.max())} is not in a table of {size} rows")
        rows = torch.where((ids < 0) | (ids >= size), size, ids).reshape(-1)
        return self._ids_on(ids.device).index_select(0, rows).reshape(ids.shape)

    def _ids_on(self, device: torch.device) -> Tensor:
        if device == self._ids.device:
            return self._ids
        if device not in self._there:
            self._there[device] = self._ids.to(device)
        return self._there[device]

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return rows as the base table gathers them."""
        return self.table.gather(self.ids_of(ids), out)

    def read(self, start: int, stop: int) -> Tensor:
        """Return the rows `[start, stop)` on the CPU, a copy."""
        return self.gather(torch.arange(start, stop))

    def check(self, rows: Tensor) -> None:
        """Raise ValueError: a selection is read-only."""
        raise ValueError("these rows are a selection of another table's: append to that one")

    def append(self, rows: Tensor) -> int:
        """Raise ValueError, as `check`."""
        self.check(rows)
        raise AssertionError

    def truncate(self, size: int) -> None:
        """Raise ValueError, as `check`."""
        self.check(torch.empty(0))

    def forget(self, first: int) -> None:
        """Do nothing: the rows belong to their table."""

    def close(self) -> None:
        """Do nothing: the rows belong to their table."""
