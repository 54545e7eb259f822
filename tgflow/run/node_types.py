"""Types of nodes from a file, which negatives are drawn by."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from tgflow.graph.id_columns import Kind
from tgflow.graph.ids import NodeIds
from tgflow.run.node_features import NodeFeatures
from tgflow.streams.errors import StreamError
from tgflow.streams.files.formats import read_table

NUM_TYPES = 65_536
"""Most types of nodes, with that of nodes without a row; as `PairIndex` has."""


class NodeTypes:
    """A table of node types with the columns `id` and `type`, as `NodeFeatures` takes one.

    Nodes without a row have a type of their own, the same for all of them. Where sources and
    destinations have ids of their own, rows are of destinations.
    """

    def __init__(self, table: Any) -> None:
        self.name, found = read_table(table, ("id", "type"))
        for column in ("id", "type"):
            if found.column_names.count(column) != 1:
                names = ", ".join(found.column_names)
                text = f"there is no column {column!r}; the columns are {names}"
                raise StreamError(self.name, "schema", text)
        column = pa.chunked_array(found["type"]).combine_chunks().cast(pa.string())
        empty = pc.fill_null(pc.equal(column, ""), True)
        if pc.any(empty).as_py():
            row = empty.index(True).as_py()
            text = "the type is missing; a node without a type has no row"
            raise StreamError(f"{self.name}, row {row}", "null", text)
        types = column.dictionary_encode()
        if len(types.dictionary) >= NUM_TYPES:
            text = (
                f"there are {len(types.dictionary):,} types; at most {NUM_TYPES - 1:,} are allowed"
            )
            raise StreamError(self.name, "range", text)
        numbers = pc.add(types.indices, 1)
        self._rows = NodeFeatures({"id": found["id"], "type": numbers}, fill_missing=0.0)
        self._rows.name = self.name
        ids = found["id"].cast(pa.string()).to_pylist()
        rows = sorted(zip(ids, column.to_pylist(), strict=True))
        self.digest = blake2b(repr(rows).encode(), digest_size=16).hexdigest()
        """Digest of the ids and types, in any order."""

    def use(self, kind: Kind) -> None:
        """Read the ids as integers or strings; see `NodeFeatures.use`."""
        self._rows.use(kind)

    def of(self, ids: NodeIds, nodes: Tensor) -> Tensor:
        """Return the types of nodes, int64 `[N]` of dense ids `[N]`; 0 for nodes without a row."""
        distinct, place = torch.unique(nodes, return_inverse=True)
        rows = self._rows
        return rows._at(rows._find(ids, distinct, None))[:, 0].long()[place]
