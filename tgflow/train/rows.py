"""Rows of features in checkpoints: held by them, or by a file of their own that they refer to.

A table on disk with a path is durable by itself. A checkpoint syncs it and says how many rows it
had, its *head*, and what the last of them were; going on, the file is cut to that. Rows that are
elsewhere are in the checkpoint's pieces of events, and come back piece by piece.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tgflow.cache import CachedTable
from tgflow.checkpoint import Checkpoint, RowsLost, Tensors, check_like
from tgflow.tables import DamagedFile, FeatureTable
from tgflow.tables.protocols import Table

HEAD = "edge_x"
"""The section that has a head."""
DIGEST_ROWS = 256
"""Rows before the head by which a file is known again."""
COPY_BYTES = 16 << 20


def kept_in_file(table: Table | None) -> FeatureTable | None:
    """Return the table beneath `table` if its rows outlive the process in a file with a name."""
    if isinstance(table, CachedTable) and isinstance(table.table, FeatureTable):
        table = table.table
    if isinstance(table, FeatureTable) and table.place == "disk" and table.path is not None:
        return table
    return None


def path_of(table: FeatureTable) -> str:
    """Return the path of a table's file, from wherever it is asked for."""
    assert table.path is not None
    return str(table.path.absolute())


def refer_to(checkpoint: Checkpoint, table: FeatureTable, rows: int) -> None:
    """Let a checkpoint refer to the first `rows` of a table that is kept in a file."""
    checkpoint.sections[HEAD] = head_of(table, rows)
    checkpoint.meta["edge_x_file"] = path_of(table)
    checkpoint.outside.append(table.sync)


def file_of(checkpoint: Checkpoint) -> Path | None:
    """Return the file that has the rows of `checkpoint`; None if it has them itself."""
    file = checkpoint.meta.get("edge_x_file")
    return None if file is None else Path(file)


def begin(checkpoint: Checkpoint, table: Table) -> None:
    """Let `table` have the rows that `checkpoint` refers to; or none, as they follow piecewise.

    Args:
        checkpoint: A trainer's.
        table: Empty; or on disk, with the rows that the checkpoint refers to.

    Raises:
        RowsLost: If the file does not have the rows that it had.
        ValueError: If the table has rows that are not the checkpoint's.
    """
    file = file_of(checkpoint)
    beneath = kept_in_file(table)
    if file is None:
        if len(table):
            raise ValueError(f"the table to fill must be empty, it has {len(table)} rows")
    elif beneath is not None and (len(beneath) or same_file(beneath.path, file)):
        check_head(beneath, head := found_head(checkpoint, HEAD))
        table.truncate(int(head["rows"]))
    else:
        copy_rows(file, found_head(checkpoint, HEAD), table)


def head_of(table: Table, rows: int) -> Tensors:
    """Return what tells the first `rows` of a table from others: their number and the last ones."""
    return {"rows": torch.tensor([rows]), "sha256": _digest(table, rows)}


def found_head(checkpoint: Checkpoint, name: str) -> Tensors:
    """Return the head in a section of a checkpoint.

    Raises:
        ValueError: If it is none.
    """
    head = {column: checkpoint.sections[name][column] for column in ("rows", "sha256")}
    check_like(name, head, {"rows": torch.zeros(1).long(), "sha256": torch.zeros(32).byte()})
    return head


def same_file(left: Path | None, right: Path) -> bool:
    """Return whether two paths, from here, name the same file; None names none."""
    return left is not None and left.absolute() == right.absolute()


def copy_rows(file: Path, head: Tensors, table: Table) -> None:
    """Fill `table` with the rows of a file, which stays as it is.

    Raises:
        RowsLost: If the file does not have them.
    """
    source = open_rows_of(file, table.dim, table.dtype)
    try:
        check_head(source, head)
        rows, step = int(head["rows"]), max(1, COPY_BYTES // (table.dim * table.dtype.itemsize))
        for start in range(0, rows, step):
            table.append(source.read(start, min(start + step, rows)))
    finally:
        source.close()


def open_rows_of(file: Path, dim: int, dtype: torch.dtype, **options: Any) -> FeatureTable:
    """Open the file that a checkpoint refers to.

    Args:
        file: Where it is.
        dim: Width of its rows.
        dtype: What their elements are.
        options: More of `FeatureTable`'s.

    Raises:
        RowsLost: If it is not there, or not whole.
    """
    if not file.exists():
        raise RowsLost(
            f"{file} is gone, and features of the checkpoint were in it; if it is elsewhere now, "
            f'give the table: FeatureTable({dim}, place="disk", path=...)'
        )
    try:
        return FeatureTable(dim, dtype, **{"place": "disk", "path": file, **options})
    except DamagedFile as error:
        raise RowsLost(f"the checkpoint's features cannot be read: {error}") from None


def check_head(table: Table, head: Tensors) -> None:
    """Raise RowsLost unless `table` begins with the rows that a head counts."""
    rows, where = int(head["rows"]), getattr(table, "path", None) or "the table"
    if len(table) < rows:
        raise RowsLost(f"{where} holds {len(table)} rows, the checkpoint counts {rows}")
    if not torch.equal(_digest(table, rows), head["sha256"]):
        raise RowsLost(
            f"{where} holds {len(table)} rows, but of the {rows} that the checkpoint counts "
            "the last are others: they are another run's, or have been written to since"
        )


def _digest(table: Table, rows: int) -> Tensor:
    last = table.read(max(0, rows - DIGEST_ROWS), rows)
    digest = hashlib.sha256(last.contiguous().view(torch.uint8).numpy().tobytes()).digest()
    return torch.tensor(list(digest), dtype=torch.uint8)
