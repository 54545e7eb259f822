"""Rows of features in checkpoints: held by them, or by a file of their own that they refer to.

A table on disk with a path is durable by itself. A checkpoint syncs it and has a fingerprint: how
many rows it had, and what the last of them were. Rows that are elsewhere are in the checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tgflow.cache import CachedTable
from tgflow.checkpoint import Checkpoint, RowsLost, Tensors, check_like
from tgflow.checkpoint.parts import pieces_of, put_pieces
from tgflow.checkpoint.typed import read_as, read_natural
from tgflow.tables import DamagedFile, FeatureTable
from tgflow.tables.table import Table

DIGEST_ROWS = 256
"""Rows before the end by which a file is known again."""
PIECE_BYTES = 64 << 20
"""Of a sealed piece of rows, about."""
COPY_BYTES = 16 << 20
_TITLES = {"edge_x": "edge features", "node_x": "node features"}


class FeatureRows:
    """The rows of a table of features, of edges or of nodes."""

    def __init__(
        self,
        name: str,
        table: Table,
        size: int | None = None,
        *,
        follows_log: bool,
        volatile: bool = False,
    ) -> None:
        self.name, self._table, self._follows_log = name, table, follows_log
        self._volatile = volatile or not follows_log
        self._size = len(table) if size is None else size

    def save(self, writer: Checkpoint) -> None:
        """Save the rows and their fingerprint, or refer to their file."""
        table, rows = self._table, self._size
        file, step = backing_file(table), max(1, PIECE_BYTES // (4 * table.dim))
        where = None if file is None or file.path is None else str(file.path.absolute())
        writer.note(self.name, {"dim": table.dim, "piece": step, "file": where})
        writer.put(f"{self.name}_mark", fingerprint(table, rows), volatile=self._volatile)
        if file is not None:
            writer.sync_before(file.sync)
        else:
            put_pieces(
                writer,
                self.name,
                step,
                rows,
                lambda start, stop: {"x": table.read(start, stop)},
                volatile=True,
            )

    def load(self, reader: Checkpoint) -> None:
        """Let the table have the rows that were saved."""
        noted = read_as(dict[str, Any], reader.meta.get(self.name), self.name)
        self._check_kind(read_natural(noted, "dim"))
        table, file = self._table, file_of(reader.meta, self.name)
        mark, backing = read_fingerprint(reader, self.name), backing_file(self._table)
        if not len(table) and not (backing is not None and same_file(backing.path, file)):
            self._fill(reader, file, mark)
        elif self._follows_log and (backing is None or file is None):
            self._check_empty()
        check_fingerprint(table if backing is None else backing, mark)
        self.rewind(int(mark["rows"]))

    def rewind(self, size: int) -> None:
        """Cut off the rows beyond the first `size`, if those that follow come again."""
        if self._follows_log and len(self._table) > size:
            self._table.truncate(size)

    def _check_empty(self) -> None:
        if len(self._table):
            raise ValueError(f"the table to fill must be empty, it has {len(self._table)} rows")

    def _check_kind(self, dim: int) -> None:
        table = self._table
        if table.dim != dim or table.dtype != torch.float32:
            raise ValueError(
                f"{_TITLES[self.name]} are float32 of width {dim}, the table's are {table.dtype} "
                f"of width {table.dim}"
            )

    def _fill(self, reader: Checkpoint, file: Path | None, mark: Tensors) -> None:
        if file is not None:
            copy_rows(file, mark, self._table)
            return
        step = max(1, read_natural(reader.meta[self.name], "piece"))
        for piece in pieces_of(reader, self.name, step, int(mark["rows"])):
            self._table.append(piece["x"])


def file_of(meta: Mapping[str, Any], name: str) -> Path | None:
    """Return the file that has the rows `name` of a checkpoint; None if it has them itself."""
    noted = read_as(dict[str, Any], meta.get(name, {}), name)
    file: str | None = read_as(str | None, noted.get("file"), f"{name}.file")
    return None if file is None else Path(file)


def backing_file(table: Table) -> FeatureTable | None:
    """Return the table behind `table` if its rows outlive the process in a file with a name."""
    if isinstance(table, CachedTable) and isinstance(table.table, FeatureTable):
        table = table.table
    if isinstance(table, FeatureTable) and table.placement == "disk" and table.path is not None:
        return table
    return None


def same_file(left: Path | None, right: Path | None) -> bool:
    """Return whether two paths, from here, name the same file; None names none."""
    return left is not None and right is not None and left.absolute() == right.absolute()


def fingerprint(table: Table, rows: int) -> Tensors:
    """Return what distinguishes the first `rows` of a table: their number, a digest of the last."""
    return {"rows": torch.tensor([rows]), "sha256": _digest(table, rows)}


def read_fingerprint(reader: Checkpoint, name: str) -> Tensors:
    """Return the fingerprint of the rows `name` of a checkpoint."""
    mark = reader.get(f"{name}_mark")
    check_like(name, mark, {"rows": torch.zeros(1).long(), "sha256": torch.zeros(32).byte()})
    return mark


def check_fingerprint(table: Table, mark: Tensors) -> None:
    """Raise RowsLost unless `table` begins with the rows of a fingerprint."""
    rows, where = int(mark["rows"]), getattr(table, "path", None) or "the table"
    if len(table) < rows:
        raise RowsLost(f"{where} holds {len(table)} rows, the checkpoint counts {rows}")
    if not torch.equal(_digest(table, rows), mark["sha256"]):
        raise RowsLost(
            f"{where} holds {len(table)} rows, but of the {rows} that the checkpoint counts "
            "the last are others: they are another run's, or have been written to since"
        )


def copy_rows(file: Path, mark: Tensors, table: Table) -> None:
    """Fill `table` with the rows of a file, which stays as it is.

    Raises:
        RowsLost: If the file does not have them.
    """
    source = _open_rows(file, table.dim, table.dtype)
    try:
        check_fingerprint(source, mark)
        rows, step = int(mark["rows"]), max(1, COPY_BYTES // (table.dim * table.dtype.itemsize))
        for start in range(0, rows, step):
            table.append(source.read(start, min(start + step, rows)))
    finally:
        source.close()


def _open_rows(file: Path, dim: int, dtype: torch.dtype) -> FeatureTable:
    if not file.exists():
        raise RowsLost(
            f"{file} is gone, and features of the checkpoint were in it; if it is elsewhere now, "
            f'give the table: FeatureTable({dim}, placement="disk", path=...)'
        )
    try:
        return FeatureTable(dim, dtype, placement="disk", path=file)
    except DamagedFile as error:
        raise RowsLost(f"the checkpoint's features cannot be read: {error}") from None


def _digest(table: Table, rows: int) -> Tensor:
    last = table.read(max(0, rows - DIGEST_ROWS), rows)
    digest = hashlib.sha256(last.contiguous().view(torch.uint8).numpy().tobytes()).digest()
    return torch.tensor(list(digest), dtype=torch.uint8)
