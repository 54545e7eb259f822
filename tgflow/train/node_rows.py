"""Rows of node features in checkpoints: held by them, or by a file of their own; see `rows`.

There may be rows of nodes that no event has mentioned yet, so how many there are depends on when
the checkpoint was taken. What is read of them does not.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from tgflow.checkpoint import Checkpoint, Tensors
from tgflow.graph import TemporalGraph
from tgflow.tables import FeatureTable
from tgflow.tables.protocols import Table
from tgflow.train.rows import check_head, copy_rows, found_head, head_of, kept_in_file, path_of

PIECE_BYTES = 64 << 20
"""Of a sealed piece of rows, about."""
_NAME = "node_x"


def note_node_rows(checkpoint: Checkpoint, table: Table) -> Checkpoint:
    """Return a checkpoint that also has a graph's table of node features, or names its file."""
    rows, file = len(table), kept_in_file(table)
    size = max(1, PIECE_BYTES // (4 * table.dim))
    where = None if file is None else path_of(file)
    meta = checkpoint.meta | {_NAME: {"dim": table.dim, "piece": size, "file": where}}
    head, sealed = head_of(table, rows), {}
    outside = checkpoint.outside
    if file is not None:
        outside = [*outside, file.sync]
    else:
        stop = rows // size * size
        head["x"] = table.read(stop, rows)
        for start in range(0, stop, size):
            sealed[_piece_name(start, size)] = partial(_piece, table, start, start + size)
    return Checkpoint(
        checkpoint.sections | {_NAME: head},
        meta,
        checkpoint.sealed | sealed,
        outside,
        checkpoint.volatile | {_NAME} | sealed.keys(),
    )


def node_rows_of(checkpoint: Checkpoint, given: Table | None) -> Table | None:
    """Return the table of node features that a checkpoint's graph reads; None without any.

    Args:
        checkpoint: A trainer's.
        given: The table to have the rows: an empty one, wherever it is, or one that has them; rows
            beyond them stay. None: host memory.

    Raises:
        RowsLost: If the table, or the file that the checkpoint refers to, has not these rows.
        ValueError: If the table is another one's.
    """
    if _NAME not in checkpoint.meta:
        if given is not None:
            raise ValueError("the checkpoint's graph has no node features, and node_x was given")
        return None
    noted, head = checkpoint.meta[_NAME], found_head(checkpoint, _NAME)
    table = FeatureTable(noted["dim"]) if given is None else given
    if table.dim != noted["dim"] or table.dtype != torch.float32:
        raise ValueError(
            f"node features are float32 of width {noted['dim']}, the table's are {table.dtype} of "
            f"width {table.dim}"
        )
    if not len(table) and noted["file"] is not None:
        copy_rows(Path(noted["file"]), head, table)
    elif not len(table):
        rest, size = checkpoint.sections[_NAME]["x"], noted["piece"]
        for start in range(0, int(head["rows"]) - len(rest), size):
            table.append(checkpoint.sealed[_piece_name(start, size)]()["x"])
        table.append(rest)
    check_head(table, head)
    return table


def check_no_later_rows(checkpoint: Checkpoint, graph: TemporalGraph) -> None:
    """Raise ValueError if the table has rows now for nodes that events mentioned without any."""
    if graph.node_x is None:
        return
    rows, found = int(checkpoint.sections[_NAME]["rows"]), len(graph.node_x)
    if found > rows and graph.num_nodes > rows:
        raise ValueError(
            f"node_x has {found} rows, but had {rows} when events mentioned {graph.num_nodes} "
            "nodes, of which the last had none; give the table that it was"
        )


def _piece(table: Table, start: int, stop: int) -> Tensors:
    return {"x": table.read(start, stop)}


def _piece_name(start: int, size: int) -> str:
    return f"node_x-{size}-{start // size:06d}"
