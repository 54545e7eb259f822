"""Rows of a table given to nodes, and to other nodes when they are free again."""

from __future__ import annotations

import torch
from torch import Tensor

from tgflow.graph.tables import _native

_PAGE = 4096
_NODES = _PAGE // 4
"""Nodes of a page."""
_MOST_NODES = 1 << 31


class RowSlots:
    """The row of each node that has one. The others read the row `empty`, which nobody writes to.

    A node takes 4 bytes; whole pages of nodes without rows take none.

    Args:
        node: The node that has each row, int64 `[N]`; -1 for a free row, and for `empty`.
        empty: A row.
    """

    def __init__(self, node: Tensor, empty: int) -> None:
        self.empty = empty
        self.node = node
        """int64 `[rows]`, with spare capacity."""
        self.size = len(node)
        """Rows, free ones too."""
        self._memory = _native.ReservedMemory(4 * _MOST_NODES)
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
        """Return the number of nodes that have a row."""
        return self.size - len(self._free) - 1

    def __reduce__(self) -> tuple[type[RowSlots], tuple[Tensor, int]]:
        return RowSlots, (self.node[: self.size].clone(), self.empty)

    def cover(self, num_nodes: int) -> None:
        """Make `of` accept nodes below `num_nodes`."""
        if num_nodes > len(self._flipped):
            self._memory.commit(4 * num_nodes)
            self._flipped = torch.frombuffer(self._memory, dtype=torch.int32)

    def of(self, nodes: Tensor) -> Tensor:
        """Return the row of each node, int64 `[N]`."""
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
            grown = self.node.new_full((max(self.size, 2 * len(self.node)),), -1)
            grown[: len(self.node)] = self.node
            self.node = grown
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
        for page in (nodes // _NODES).unique().tolist():
            if not self._flipped[page * _NODES : (page + 1) * _NODES].any():
                self._memory.clear(page * _PAGE, _PAGE)
