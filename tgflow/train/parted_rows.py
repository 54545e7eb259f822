"""Rows of events' features in checkpoints by parts, which ranks that each have some write together.

A part has the rows of its stripes (`tgflow.tables.stripes`), in sealed pieces and a rest of its
own: what is in which section depends on the number of rows alone, not on who has which.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from tgflow.checkpoint import Checkpoint, Tensors, check_like
from tgflow.checkpoint.checkpoint import part_section
from tgflow.checkpoint.parts import pieces_of, put_pieces
from tgflow.checkpoint.typed import read_as, read_natural
from tgflow.peers import PARTS
from tgflow.tables.protocols import Table, spread_table
from tgflow.tables.stripes import Stripes, parts_with_rows, stripes_of_part, whole_stripes

PIECE_BYTES = 2 << 20
"""Of a sealed piece of a part's rows, about: those of all parts that follow are 128 MiB at most."""


def is_parted(reader: Checkpoint, name: str) -> bool:
    """Return whether a checkpoint has the rows `name` by parts."""
    return "parts" in read_as(dict[str, Any], reader.meta.get(name), name)


def save_parts(writer: Checkpoint, name: str, table: Table, size: int) -> None:
    """Save the first `size` rows; of a table over ranks those that are here.

    Raises:
        ValueError: If the writer wants rows of another rank.
    """
    stripes, here = _held(table)
    step = whole_stripes(PIECE_BYTES // (table.dim * table.dtype.itemsize))
    noted = {"dim": table.dim, "piece": step, "file": None, "parts": PARTS, "rows": size}
    writer.note(name, noted)
    for part in parts_with_rows(size):
        read = partial(_rows_of_part, here, stripes, part)
        count = stripes_of_part(part).count(size)
        put_pieces(writer, name, step, count, read, part=part, volatile=True)


def _held(table: Table) -> tuple[Stripes, Table]:
    """Return which rows are here, and the table that has them by their local ids."""
    spread = spread_table(table)
    return (Stripes(), table.base) if spread is None else (spread.stripes, spread.here)


def _rows_of_part(here: Table, stripes: Stripes, part: int, start: int, stop: int) -> Tensors:
    """Return the rows of a part that have the local ids `[start, stop)` in it: a copy."""
    if part not in stripes.shard.parts:
        raise ValueError(
            f"part {part} of the rows is with rank {stripes.shard.owner(part)}: each rank saves "
            "its own parts, to a Checkpoint of its shard"
        )
    ids = stripes_of_part(part).ids(torch.arange(start, stop))
    return {"x": here.gather(stripes.local(ids))}


def load_parts(reader: Checkpoint, name: str, table: Table) -> None:
    """Fill an empty table with the rows of a checkpoint; of one over ranks, with those it owns.

    Raises:
        KeyError: If a section is missing.
        UntrustedCheckpoint: If one has not the rows that it must have.
        ValueError: If pieces cannot be of such a size.
    """
    noted = read_as(dict[str, Any], reader.meta.get(name), name)
    size, step = (read_natural(noted, key) for key in ("rows", "piece"))
    if not step or step != whole_stripes(step):
        raise ValueError(f"a piece of a part has whole stripes, not {step} rows")
    spread = spread_table(table)
    stripes, _ = _held(table)
    for number, rows in enumerate(_blocks(reader, name, table, stripes, step, size)):
        if spread is None:
            table.append(rows)
        else:
            spread.append_own(rows, min(size, (number + 1) * step * PARTS))
    if spread is not None:  # whose last rows may be with other ranks
        spread.append_own(torch.empty(0, table.dim, dtype=table.dtype), size)


def _blocks(
    reader: Checkpoint, name: str, table: Table, stripes: Stripes, step: int, size: int
) -> Iterator[Tensor]:
    """Yield the rows that `stripes` owns, in order: those of one piece of each part at a time.

    Raises:
        KeyError, UntrustedCheckpoint: As `load_parts`.
    """
    parts = [part for part in parts_with_rows(size) if part in stripes.shard.parts]
    counts = [stripes_of_part(part).count(size) for part in parts]
    pieces = [
        pieces_of(reader, name, step, count, part=part)
        for part, count in zip(parts, counts, strict=True)
    ]
    for number, found in enumerate(zip_longest(*pieces)):
        ids, rows = [], []
        for part, count, piece in zip(parts, counts, found, strict=True):
            if piece is not None:
                local = torch.arange(number * step, min(number * step + step, count))
                expected = torch.empty(len(local), table.dim, dtype=table.dtype, device="meta")
                check_like(part_section(name, part), piece, {"x": expected})
                ids.append(stripes_of_part(part).ids(local))
                rows.append(piece["x"])
        yield torch.cat(rows).index_select(0, torch.cat(ids).argsort())
