"""Storage of the rows of a node memory: a buffer of the model, or a table; and whose they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from tgflow.cuda.device import device_of
from tgflow.cuda.requirements import require_device
from tgflow.nn._native import ReservedMemory

if TYPE_CHECKING:
    from tgflow.graph.tables import FeatureTable
    from tgflow.graph.tables.placements import Placement

MemoryPlacement = Literal["model", "auto", "device", "uva", "host"]


class TensorTable(nn.Module):
    """Rows in a buffer of the model: they follow `Module.to`, and are not in `state_dict`."""

    rows: Tensor
    placement = "model"

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self._size = 0
        self.register_buffer("rows", torch.zeros(0, dim), persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        return self.rows.dtype

    def __len__(self) -> int:
        return self._size

    def append(self, rows: Tensor) -> int:
        """Add rows and return the first one's id. Amortized: room at least doubles."""
        first, self._size = self._size, self._size + len(rows)
        self.rows = grow_to(self.rows, self._size)
        self.rows[first : self._size] = rows
        return first

    def gather(self, ids: Tensor) -> Tensor:
        return self.rows.index_select(0, ids)

    def scatter_(self, ids: Tensor, rows: Tensor) -> None:
        """Overwrite the rows of distinct ids, which is not checked."""
        self.rows.index_copy_(0, ids.to(self.rows.device), rows.to(self.rows.device))

    def read(self, start: int, stop: int) -> Tensor:
        """Return consecutive rows: a view, on the model's device."""
        return self.rows[start:stop]


class PlacedTable(nn.Module):
    """Rows in a `FeatureTable`, created with the first of them, for the device of the model."""

    dtype = torch.float32
    _device: Tensor

    def __init__(self, dim: int, placement: Placement) -> None:
        super().__init__()
        self.dim = dim
        self._placement = placement
        self._table: FeatureTable | None = None
        self.register_buffer("_device", torch.empty(0), persistent=False)  # goes with the model

    @property
    def table(self) -> FeatureTable:
        if self._table is None:
            from tgflow.graph.tables import FeatureTable  # other models need none

            at = self._device.device
            on = None if at.type == "cpu" or self._placement == "host" else device_of(at)
            self._table = FeatureTable(self.dim, placement=self._placement, device=on)
        return self._table

    @property
    def placement(self) -> str:
        return self._placement if self._table is None else self._table.placement

    def __len__(self) -> int:
        return 0 if self._table is None else len(self._table)

    def append(self, rows: Tensor) -> int:
        return self.table.append(rows)

    def gather(self, ids: Tensor) -> Tensor:
        return self.table.gather(ids)

    def scatter_(self, ids: Tensor, rows: Tensor) -> None:
        self.table.scatter_(ids, rows)

    def read(self, start: int, stop: int) -> Tensor:
        return self.table.read(start, stop)


MemoryTable: TypeAlias = "TensorTable | PlacedTable | FeatureTable"
"""Tables of rows that grow and change."""


def memory_table(dim: int, placement: MemoryPlacement) -> MemoryTable:
    check_memory_placement(placement)
    if placement == "model":
        return TensorTable(dim)
    if placement in ("device", "uva"):
        require_device(torch.device("cuda"))
    return PlacedTable(dim, placement)


def check_memory_placement(placement: str) -> None:
    placements = get_args(MemoryPlacement)
    if placement == "disk":
        raise ValueError(
            'memory_placement cannot be "disk": rows on disk are immutable, and memory changes '
            'with every event; use "uva" or "host"'
        )
    if placement not in placements:
        raise ValueError(
            f"memory_placement must be one of {', '.join(placements)}, got {placement!r}"
        )


def check_memory_table(table: MemoryTable, width: int) -> None:
    """Raise ValueError unless `table` can hold a memory's rows, of this width."""
    if table.placement == "disk":
        raise ValueError(
            "memory cannot be in a table on disk, whose rows are immutable; "
            'use placement="uva" or "host"'
        )
    if table.dim != width or table.dtype != torch.float32 or len(table) > 0:
        raise ValueError(
            f"the table of a memory must be empty and of {width} float32 (memory and mail), "
            f"got {len(table)} rows of {table.dim} {str(table.dtype).removeprefix('torch.')}"
        )


_FIRST_ROWS, _FIRST_ROWS_ON_A_DEVICE = 64, 1 << 14
"""Least room of rows: where they move, each step that was captured is captured again."""


def grow_to(rows: Tensor, size: int) -> Tensor:
    """Return `rows`, zero-padded to `size` if there are fewer."""
    if size <= len(rows):
        return rows
    least = _FIRST_ROWS if rows.is_cpu else _FIRST_ROWS_ON_A_DEVICE
    grown = rows.new_zeros((max(size, 2 * len(rows), least), *rows.shape[1:]))
    grown[: len(rows)] = rows
    return grown


_PAGE = 4096
_NODES_OF_PAGE = _PAGE // 4
_MOST_NODES = 1 << 31


class RowSlots:
    """The row of each node that has one. The others read the row `empty`, which nobody writes to.

    A node takes 4 bytes; whole pages of nodes without rows take none. `node` has the node of each
    row, int64 `[N]`; -1 for a free row, and for `empty`.
    """

    def __init__(self, node: Tensor, empty: int) -> None:
        self.empty = empty
        self.node = node
        """int64 `[rows]`, with spare capacity."""
        self.size = len(node)
        """Rows, free ones too."""
        self._memory = ReservedMemory(4 * _MOST_NODES)
        self._memory.use_small_pages()
        # a row's number with the bits of `empty` flipped, so that fresh memory means that row
        self._flipped = torch.empty(0, dtype=torch.int32)
        is_free = node < 0
        used = (~is_free).nonzero().squeeze(1)
        is_free[empty] = False
        self._free = is_free.nonzero().squeeze(1)
        self.cover(int(node.max()) + 1 if len(node) else 0)
        self._flipped[node[used]] = (used ^ empty).int()

    def __len__(self) -> int:
        return self.size - len(self._free) - 1

    def __reduce__(self) -> tuple[type[RowSlots], tuple[Tensor, int]]:
        return RowSlots, (self.node[: self.size].clone(), self.empty)

    def cover(self, num_nodes: int) -> None:
        """Make `of` accept nodes below `num_nodes`."""
        if num_nodes > len(self._flipped):
            self._memory.commit(4 * num_nodes)
            self._flipped = torch.frombuffer(self._memory, dtype=torch.int32)

    def of(self, nodes: Tensor) -> Tensor:
        return self._flipped.index_select(0, nodes).long() ^ self.empty

    def give(self, nodes: Tensor) -> Tensor:
        """Return the row of each of distinct nodes, of which those without get one."""
        slot = self.of(nodes)
        new = (slot == self.empty).nonzero().squeeze(1)
        if not len(new):
            return slot
        old = min(len(new), len(self._free))
        fresh = torch.arange(self.size, self.size + len(new) - old)
        rows = torch.cat([self._free[len(self._free) - old :], fresh])
        self._free = self._free[: len(self._free) - old]
        self.size += len(fresh)
        if self.size > len(self.node):
            self.node = grow_to(self.node, self.size)
        self.node[rows] = nodes[new]
        self._flipped[nodes[new]] = (rows ^ self.empty).int()
        slot[new] = rows
        return slot

    def free(self, rows: Tensor) -> None:
        """Take distinct rows from their nodes."""
        nodes = self.node[rows]
        self.node[rows] = -1
        self._free = torch.cat([self._free, rows])
        self._flipped[nodes] = 0
        for page in {*(nodes // _NODES_OF_PAGE).tolist()}:
            if not self._flipped[page * _NODES_OF_PAGE : (page + 1) * _NODES_OF_PAGE].any():
                self._memory.clear(page * _PAGE, _PAGE)
