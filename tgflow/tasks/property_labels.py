"""Properties of nodes at times, such as what a user listens to in a week: read from a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from tgflow.ids import NodeIds
from tgflow.tasks.node_labels import found_nodes

COLUMNS = ("t", "node", "label", "weight")


@dataclass(frozen=True, slots=True, eq=False)
class PropertyTime:
    """The properties that nodes have at one time."""

    t: int
    """Ticks."""
    nodes: Tensor
    """int64 `[N]`: dense ids, each once."""
    row: Tensor
    """int64 `[R]`: of which node a weight is, by its place in `nodes`."""
    item: Tensor
    """int64 `[R]`."""
    weight: Tensor
    """float32 `[R]`, at least 0."""

    def dense(self, num_items: int) -> Tensor:
        """Return the properties, float32 `[N, num_items]`."""
        y = torch.zeros(len(self.nodes), num_items)
        return y.index_put_((self.row, self.item), self.weight, accumulate=True)


@dataclass(frozen=True, slots=True, eq=False)
class PropertyLabels:
    """The properties of all times, in order."""

    times: list[PropertyTime]
    num_items: int

    @classmethod
    def of(cls, table: pa.Table, ids: NodeIds, ticks_per_unit: int, path: str) -> PropertyLabels:
        """Return the properties of a table with the columns t, node, label and weight.

        Args:
            table: A row for each item that a node has at a time; nodes in the ids of the stream,
                those of which it has no events are left out.
            ids: Of the stream.
            ticks_per_unit: Ticks in a unit of `t`.
            path: What messages call it.

        Raises:
            ValueError: If a column is missing or has gaps, or a weight is negative.
        """
        for name in COLUMNS:
            if name not in table.column_names:
                listed = ", ".join(table.column_names)
                raise ValueError(f"{path} has no column {name!r}; the columns are {listed}")
            if table[name].null_count:
                raise ValueError(f"{path}: {table[name].null_count} values of {name} are missing")
        nodes = found_nodes(ids, table["node"].combine_chunks())
        t = torch.from_numpy(table["t"].to_numpy().astype(np.int64)) * ticks_per_unit
        weight = torch.from_numpy(table["weight"].to_numpy().astype(np.float32))
        if not bool((weight >= 0).all()):
            raise ValueError(f"{path}: weights must be at least 0, got {float(weight.min())}")
        codes = table["label"].combine_chunks().dictionary_encode()
        item = torch.from_numpy(codes.indices.to_numpy().astype(np.int64))
        known = nodes >= 0
        order = torch.sort(t[known], stable=True)
        rows = known.nonzero().flatten()[order.indices]
        sizes = torch.unique_consecutive(order.values, return_counts=True)[1].tolist()
        columns = (torch.split(each[rows], sizes) for each in (t, nodes, item, weight))
        return cls([_time(*part) for part in zip(*columns, strict=True)], len(codes.dictionary))


def _time(t: Tensor, nodes: Tensor, item: Tensor, weight: Tensor) -> PropertyTime:
    distinct, row = torch.unique(nodes, return_inverse=True)
    return PropertyTime(int(t[0]), distinct, row, item, weight)


def read_property_labels(path: str, ids: NodeIds, ticks_per_unit: int) -> PropertyLabels:
    """Read a file of properties: CSV (also .gz) or Parquet; see `PropertyLabels.of`.

    Raises:
        OSError: If it cannot be read.
        ValueError: As `PropertyLabels.of`.
    """
    from pyarrow import csv, parquet

    read: Any = parquet.read_table if Path(path).suffix == ".parquet" else csv.read_csv
    try:
        return PropertyLabels.of(read(path), ids, ticks_per_unit, path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path}: {error}") from None
