"""A change of the past on its way into a device store: counted, reserved for, then committed."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from tgflow.cuda.device import Device
from tgflow.cuda.launch import prefix_sum
from tgflow.cuda.structs import Changing, Fresh, StoreView, Version
from tgflow.peers import Shard
from tgflow.units import INT64_MAX, INT64_MIN

_THREADS = 128
_NEW_BLOCK_BYTES = 16


@dataclass(frozen=True, slots=True, eq=False)
class Edits:
    """Entries to put into nodes' pasts or to take out; columns are int64 `[N]`."""

    node: Tensor
    t: Tensor
    eid: Tensor
    nbr: Tensor
    puts_in: bool

    @classmethod
    def of_events(
        cls, src: Tensor, dst: Tensor, t: Tensor, eid: Tensor, *, puts_in: bool, directed: bool
    ) -> Edits:
        """Return the edits of these events: one an event if directed, or a self-loop, else two."""
        if directed:
            return cls(src, t, eid, dst, puts_in)
        back = src != dst
        return cls(
            torch.cat([src, dst[back]]),
            torch.cat([t, t[back]]),
            torch.cat([eid, eid[back]]),
            torch.cat([dst, src[back]]),
            puts_in,
        )

    def held_by(self, shard: Shard) -> Edits:
        """Return those of nodes that a shard holds, by local id."""
        if shard.world == 1:
            return self
        kept = shard.owns(self.node).nonzero().squeeze(1)
        node, t, eid, nbr = (column[kept] for column in self.columns())
        return Edits(shard.local(node), t, eid, nbr, self.puts_in)

    def columns(self) -> list[Tensor]:
        """Return node, t, eid and nbr."""
        return [self.node, self.t, self.eid, self.nbr]

    def sorted(self) -> Edits:
        """Return the same edits by node, each node's by (t, eid)."""
        order = self.eid.argsort(stable=True)
        for column in (self.t, self.node):
            order = order[column[order].argsort(stable=True)]
        return Edits(
            self.node[order], self.t[order], self.eid[order], self.nbr[order], self.puts_in
        )


class ChangeArgs:
    """What changed nodes need; holds the tensors that kernels work on. Nobody sees it yet.

    Args:
        gpu: The store's device.
        store: As published.
        max_capacity: Entries of a block at most.
    """

    def __init__(self, gpu: Device, store: StoreView, max_capacity: int) -> None:
        self._kernels, self._device = gpu.kernels, gpu.device
        self._in = Changing(store=store, min_t=INT64_MIN, max_count=INT64_MAX)
        self._in.fresh.max_capacity = max_capacity
        self._kept: list[Tensor] = []
        self._places = torch.empty(0, dtype=torch.int64, device=self._device)
        self._num_nodes = 0
        self.num_blocks = self.num_entries = self.num_rooms = self.gained = 0
        """New blocks; fresh entries; fresh directories in units of 32 bytes; entries gained."""
        self.largest_node = -1

    def edit(self, edits: Edits, largest_node: int) -> None:
        """Count what `edits`, on the device, need. Synchronizes."""
        edits = edits.sorted()
        nodes, counts = torch.unique_consecutive(edits.node, return_counts=True)
        begin = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        table = torch.stack((edits.t, edits.eid, edits.nbr), 1)
        self._in.edits, self._in.begin = table.data_ptr(), begin.data_ptr()
        self._in.puts_in = int(edits.puts_in)
        self._kept += [begin, table]
        self._count(nodes, largest_node)

    def forget(self, num_nodes: int, min_t: int, max_count: int) -> None:
        """Count what forgetting old entries of all nodes needs. Synchronizes."""
        self._in.min_t, self._in.max_count = min_t, max_count
        self._count(torch.arange(num_nodes, device=self._device), num_nodes - 1)

    def _count(self, nodes: Tensor, largest_node: int) -> None:
        self._num_nodes = len(nodes)
        demand = nodes.new_zeros(4, max(len(nodes), 1))
        self._in.node, self._in.num_nodes = nodes.data_ptr(), len(nodes)
        self._in.demand = demand.data_ptr()
        self._kept += [nodes, demand]
        self._launch("change_count")
        prefix_sum(demand)
        read: list[int] = demand[:, -1].tolist()
        self.num_blocks, self.num_entries, self.num_rooms, self.gained = read
        self.largest_node = largest_node
        self._places = nodes.new_empty(self.num_blocks + 1)
        blocks = nodes.new_empty(self.num_blocks + 1, _NEW_BLOCK_BYTES, dtype=torch.uint8)
        self._in.blocks = blocks.data_ptr()
        self._kept.append(blocks)

    def commit(
        self, store: StoreView, heads: Tensor, fresh: Fresh, changed_at: int, number: int
    ) -> None:
        """Write and publish the new versions, for snapshots that know of change `number`.

        Args:
            store: As given at first, but with the chunks that were added since.
            heads: With room for the largest node.
            fresh: Where the fresh memory lies.
            changed_at: Cut-offs from here on see the change.
            number: Of the change, counted from 1.
        """
        self._in.store, self._in.heads, self._in.fresh = store, heads.data_ptr(), fresh
        self._in.version = Version(changed_at, number)
        self._launch("change_write", ctypes.c_uint64(self._places.data_ptr()))
        self._launch("change_publish")

    def _launch(self, kernel: str, *more: ctypes.c_uint64) -> None:
        if self._num_nodes > 0:
            blocks = -(-self._num_nodes // _THREADS)
            self._kernels.launch(kernel, blocks, _THREADS, self._in, *more)
