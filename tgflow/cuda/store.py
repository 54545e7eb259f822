"""The block store of a graph on a GPU: directories and recent blocks in its memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from tgflow.cuda.chunks import Chunks
from tgflow.cuda.free import FreeList
from tgflow.cuda.insertion import THREADS, Plan
from tgflow.cuda.machine import Machine
from tgflow.cuda.readers import Readers
from tgflow.cuda.rooms import Rooms
from tgflow.cuda.structs import Fresh, Snapshot, StoreView


@dataclass(frozen=True, slots=True)
class TierCounts:
    """What the latest version of the graph has in a tier."""

    num_blocks: int
    num_entries: int
    capacity: int
    """Entries that its blocks have room for."""
    bytes: int
    """Of its chunks."""


@dataclass(frozen=True, slots=True)
class DeviceStats:
    """What a device store holds and what it costs."""

    upper: TierCounts
    lower: TierCounts
    max_blocks: int
    """Blocks of the node that has most."""
    other_bytes: int
    """Of directories, heads and tables."""


class DeviceStore:
    """Takes whole batches in a constant number of launches, and one wait for what they need.

    One thread inserts while any number sample: what they read is reused when they are done.

    Args:
        machine: The device.
        directed: Whether only sources have neighbours.
        budget: Bytes of blocks on the device; None: no limit.
    """

    def __init__(self, machine: Machine, directed: bool, budget: int | None = None) -> None:
        self._machine, self._directed = machine, directed
        self.readers = Readers(machine)
        self.chunks = Chunks(machine, self.readers, budget)
        self._rooms = Rooms(machine)
        self._free = FreeList(self.chunks)
        self._heads = torch.zeros(1024, dtype=torch.int64, device=machine.device)
        self._num_nodes = 0
        self._types = torch.empty(0, dtype=torch.uint16, device=machine.device)
        self.position = 0
        """Events that samplers launched from now on see."""
        self._plan: Plan | None = None
        self._snapshot = torch.zeros(
            ctypes.sizeof(Snapshot), dtype=torch.uint8, device=machine.device
        )

    @property
    def snapshot(self) -> int:
        """Where kernels find the store: one address for its lifetime."""
        return self._snapshot.data_ptr()

    def reserve(self, src: Tensor, dst: Tensor, t: Tensor) -> None:
        """Plan for events that follow and get the memory; changes nothing that a reader can see.

        Args:
            src: Checked sources, int64 `[B]` on the device.
            dst: Destinations, likewise.
            t: Times, likewise.

        Raises:
            MemoryError: If a tier has no room; the message says how much was asked for.
        """
        self.readers.writing()
        self._reuse()
        self._plan, self._size = None, len(src)
        if len(src) == 0:
            return
        plan = Plan(self._machine.kernels.launch, src, dst, t, self.position, self._directed)
        plan.read(self._view(), self._free.view(), self.chunks.max_capacity)
        self._rooms.ensure(plan.num_rooms)
        self._moved = self.chunks.ensure(plan.num_entries)
        self._grow_heads(plan.largest_node + 1)
        self._plan = plan

    def commit(self) -> None:
        """Insert what was reserved for and move the snapshot on; does not synchronise."""
        if self._plan is not None:
            fresh = Fresh(
                self.chunks.line,
                self.chunks.stride,
                self._rooms.address,
                self.chunks.max_capacity,
            )
            given_up = self._plan.commit(self._view(), self._heads, fresh)
            self._count_off(self._plan)
            self._publish(self.position + self._size)
            self.readers.give_up(given_up)
            self._plan = None
        self._size = 0

    def stats(self) -> DeviceStats:
        """Count what the store holds, node by node. Synchronises."""
        counts = torch.zeros(7, dtype=torch.int64, device=self._machine.device)
        blocks = -(-max(self._num_nodes, 1) // THREADS)
        address = ctypes.c_uint64(counts.data_ptr())
        with self.readers.reading():
            self._machine.kernels.launch("count_store", blocks, THREADS, self._view(), address)
        read = counts.tolist()
        upper, lower = (
            TierCounts(read[tier], read[2 + tier], read[4 + tier], self.chunks.tier_bytes(tier))
            for tier in range(2)
        )
        tables = (self._heads, self._types, self.chunks.addresses, self.chunks.tiers)
        other = self._rooms.num_bytes + self._free.num_bytes + sum(x.nbytes for x in tables)
        return DeviceStats(upper, lower, read[6], other)

    def _count_off(self, plan: Plan) -> None:
        self.chunks.line += plan.num_entries
        self._rooms.used += plan.num_rooms
        self._num_nodes = max(self._num_nodes, plan.largest_node + 1)
        self._free.take(plan.needed)
        if self._moved:
            self._free.merge()

    def _publish(self, position: int) -> None:
        snapshot = Snapshot(self._view(), position)
        address = ctypes.c_uint64(self.snapshot)
        self._machine.kernels.launch("publish_snapshot", 1, 1, address, snapshot)
        self.readers.published()
        self.position = position

    def _reuse(self) -> None:
        for items, classes in self.readers.collect():
            if classes is not None:
                self._free.give(items, classes)

    def _view(self) -> StoreView:
        return StoreView(
            self._heads.data_ptr(),
            self._num_nodes,
            self.chunks.addresses.data_ptr(),
            self.chunks.tiers.data_ptr(),
            self._types.data_ptr(),
        )

    def _grow_heads(self, num_nodes: int) -> None:
        if num_nodes <= len(self._heads):
            return
        heads = self._heads.new_zeros(max(num_nodes, 2 * len(self._heads)))
        heads[: self._num_nodes] = self._heads[: self._num_nodes]
        self.readers.give_up((self._heads, None))
        self._heads = heads
