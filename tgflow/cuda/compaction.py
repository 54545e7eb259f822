"""Compaction of a device store: what is left moves out of sparse memory, which is given back."""

from __future__ import annotations

import torch
from torch import Tensor

from tgflow.cuda.chunks import Chunks
from tgflow.cuda.launch import Kernels, prefix_sum
from tgflow.cuda.structs import Compacting, Fresh, StoreView

_THREADS = 128
_MOVE_BYTES = 24


class Compaction:
    """Kernels over all nodes, and the tensors that they work on.

    Args:
        kernels: Of the store's device.
        store: As published.
        heads: Its directories, int64 `[>= num_nodes]`.
    """

    def __init__(self, kernels: Kernels, store: StoreView, heads: Tensor) -> None:
        self._kernels = kernels
        self._num_nodes = store.num_nodes
        self._demand = heads.new_zeros(3, max(self._num_nodes, 1))
        self._in = Compacting(store=store, heads=heads.data_ptr(), demand=self._demand.data_ptr())

    def forget_past(self) -> None:
        """Give up what only cut-offs before the latest changes see."""
        self._launch("compact_past")

    def measure(self, chunks: Chunks) -> list[int]:
        """Return the chunks that blocks should leave: worth it only if fewer are needed then.

        Synchronizes. `num_entries` and `num_rooms` say what leaving them needs.
        """
        live = torch.zeros(chunks.count, dtype=torch.int64, device=chunks.tiers.device)
        self._in.live = live.data_ptr()
        self._launch("compact_live")
        counts = live.tolist()
        sparse = [c for c in chunks.held() if 2 * counts[c] <= chunks.size]
        if -(-sum(counts[c] for c in sparse) // chunks.stride) >= len(sparse):
            sparse = [c for c in sparse if counts[c] == 0]
        self._sparse = torch.zeros_like(chunks.tiers)
        self._sparse[sparse] = 1
        self._in.sparse = self._sparse.data_ptr()
        self._launch("compact_count")
        prefix_sum(self._demand)
        self._num_moves, self.num_entries, self.num_rooms = self._demand[:, -1].tolist()
        """Blocks that move; their entries; directories in units of 32 bytes."""
        return sparse

    def move(self, store: StoreView, fresh: Fresh) -> None:
        """Move the blocks, and then all directories, to fresh memory; readers follow them."""
        moves = self._demand.new_empty(self._num_moves + 1, _MOVE_BYTES, dtype=torch.uint8)
        self._in.store, self._in.fresh, self._in.moves = store, fresh, moves.data_ptr()
        self._launch("compact_list")
        if self._num_moves > 0:
            self._kernels.launch("compact_move", self._num_moves, _THREADS, self._in)
        self._launch("compact_directory")

    def _launch(self, kernel: str) -> None:
        if self._num_nodes > 0:
            blocks = -(-self._num_nodes // _THREADS)
            self._kernels.launch(kernel, blocks, _THREADS, self._in)
