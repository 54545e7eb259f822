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
COPY_BYTES = 16 << 20
_TITLES = {"edge_x": "edge features", "node_x": "node features"}


def save_rows(writer: Checkpoint, name: str, table: Table, size: int, *, volatile: bool) -> None:
    """Save the first `size` rows and their fingerprint, or refer to their file."""
    file, step = _backing_file(table), max(1, PIECE_BYTES // (4 * table.dim))
    where = None if file is None or file.path is None else str(file.path.absolute())
    writer.note(name, {"dim": table.dim, "piece": step, "file": where})
    mark = {"rows": torch.tensor([size]), "sha256": _digest(table, size)}
    writer.put(f"{name}_mark", mark, volatile=volatile)
    if file is not None:
        writer.outside.append(file.sync)
        return

    def read(start: int, stop: int) -> Tensors:
        return {"x": table.read(start, stop)}

    put_pieces(writer, name, step, size, read, volatile=True)


def load_rows(reader: Checkpoint, name: str, table: Table, *, follows_log: bool) -> None:
    """Let a table have the rows that were saved."""
    dim = read_natural(read_as(dict[str, Any], reader.meta.get(name), name), "dim")
    if table.dim != dim or table.dtype != torch.float32:
        raise ValueError(
            f"{_TITLES[name]} are float32 of width {dim}, the table's are {table.dtype} "
            f"of width {table.dim}"
        )
    mark, file, backing = (
        reader.get(f"{name}_mark"),
        file_of(reader.meta, name),
        _backing_file(table),
    )
    check_like(name, mark, {"rows": torch.zeros(1).long(), "sha256": torch.zeros(32).byte()})
    rows = int(mark["rows"])
    if not len(table) and not (backing is not None and same_file(backing.path, file)):
        if file is not None:
            _copy_rows(file, mark, table)
        else:
            step = max(1, read_natural(reader.meta[name], "piece"))
            for piece in pieces_of(reader, name, step, rows):
                table.append(piece["x"])
    elif follows_log and (backing is None or file is None) and len(table):
        raise ValueError(f"the table to fill must be empty, it has {len(table)} rows")
    _check_mark(table if backing is None else backing, mark)
    if follows_log and len(table) > rows:
        table.truncate(rows)


def file_of(meta: Mapping[str, Any], name: str) -> Path | None:
    """Return the file that has the rows `name` of a checkpoint; None if it has them itself."""
    noted = read_as(dict[str, Any], meta.get(name, {}), name)
    file: str | None = read_as(str | None, noted.get("file"), f"{name}.file")
    return None if file is None else Path(file)


def same_file(left: Path | None, right: Path | None) -> bool:
    """Return whether two paths, from here, name the same file; None names none."""
    return left is not None and right is not None and left.absolute() == right.absolute()


def _backing_file(table: Table) -> FeatureTable | None:
    """Return the table behind `table` if its rows outlive the process in a file with a name."""
    if isinstance(table, CachedTable) and isinstance(table.table, FeatureTable):
        table = table.table
    if isinstance(table, FeatureTable) and table.placement == "disk" and table.path is not None:
        return table
    return None


def _digest(table: Table, rows: int) -> Tensor:
    last = table.read(max(0, rows - DIGEST_ROWS), rows)
    digest = hashlib.sha256(last.contiguous().view(torch.uint8).numpy().tobytes()).digest()
    return torch.tensor(list(digest), dtype=torch.uint8)


def _check_mark(table: Table, mark: Tensors) -> None:
    """Raise RowsLost unless `table` begins with the rows of a fingerprint."""
    rows, where = int(mark["rows"]), getattr(table, "path", None) or "the table"
    if len(table) < rows:
        raise RowsLost(f"{where} holds {len(table)} rows, the checkpoint counts {rows}")
    if not torch.equal(_digest(table, rows), mark["sha256"]):
        raise RowsLost(
            f"{where} holds {len(table)} rows, but of the {rows} that the checkpoint counts "
            "the last are others: they are another run's, or have been written to since"
        )


def _copy_rows(file: Path, mark: Tensors, table: Table) -> None:
    """Fill `table` with the rows of a file, which stays as it is."""
    if not file.exists():
        raise RowsLost(
            f"{file} is gone, and features of the checkpoint were in it; if it is elsewhere now, "
            f'give the table: FeatureTable({table.dim}, placement="disk", path=...)'
        )
    try:
        source = FeatureTable(table.dim, table.dtype, placement="disk", path=file)
    except DamagedFile as error:
        raise RowsLost(f"the checkpoint's features cannot be read: {error}") from None
    try:
        _check_mark(source, mark)
        rows, step = int(mark["rows"]), max(1, COPY_BYTES // (table.dim * table.dtype.itemsize))
        for start in range(0, rows, step):
            table.append(source.read(start, min(start + step, rows)))
    finally:
        source.close()
