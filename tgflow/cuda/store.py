"""The block store of a graph on a GPU: directories and recent blocks in its memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from tgflow.cuda.chunks import Chunks
from tgflow.cuda.compaction import Compaction
from tgflow.cuda.device import Device, translate_oom
from tgflow.cuda.directory_slabs import DirectorySlabs
from tgflow.cuda.free_lists import FreeList
from tgflow.cuda.insertion import THREADS, InsertionPlan
from tgflow.cuda.mutation import ChangeArgs, Edits
from tgflow.cuda.readers import Readers
from tgflow.cuda.structs import Fresh, Snapshot, StoreView


@dataclass(frozen=True, slots=True)
class DeviceTier:
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

    device: DeviceTier
    host: DeviceTier
    max_blocks: int
    """Blocks of the node that has most."""
    reads: tuple[int, int]
    """Neighbors read from each tier, counted where there is a budget."""
    bytes: int
    """All memory, that of directories, heads and tables included."""

    @property
    def num_entries(self) -> int:
        """Entries of both tiers."""
        return self.device.num_entries + self.host.num_entries


class DeviceStore:
    """Takes whole batches in a constant number of launches, and one wait for what they need.

    One thread writes while any number sample: what they read is reused when they are done. A write
    is reserved for, which changes nothing that a reader can see, and then committed.

    Args:
        gpu: The device.
        directed: Whether only sources have neighbors.
        budget: Bytes of blocks on the device; None: no limit.
    """

    def __init__(self, gpu: Device, directed: bool, budget: int | None = None) -> None:
        self._gpu, self._directed = gpu, directed
        self.readers = Readers(gpu)
        self.chunks = Chunks(gpu, self.readers, budget)
        self._slabs = DirectorySlabs(gpu)
        self._free = FreeList(self.chunks)
        self._heads = torch.zeros(1024, dtype=torch.int64, device=gpu.device)
        self._types = torch.empty(0, dtype=torch.int16, device=gpu.device)
        self._reads = torch.zeros(2, dtype=torch.int64, device=gpu.device)
        self._num_nodes = self._num_changes = 0
        self.position = 0
        """Events that samplers launched from now on see."""
        self._pending: InsertionPlan | ChangeArgs | None = None
        self._new_types: Tensor | None = None
        self._snapshot = torch.zeros(ctypes.sizeof(Snapshot), dtype=torch.uint8, device=gpu.device)

    @property
    def snapshot(self) -> int:
        """Where kernels find the store: one address for its lifetime."""
        return self._snapshot.data_ptr()

    @translate_oom
    def reserve(self, src: Tensor, dst: Tensor, t: Tensor, types: Tensor | None = None) -> None:
        """Plan for events that follow and get the memory.

        Args:
            src: Checked sources, int64 `[B]` on the device.
            dst: Destinations, likewise.
            t: Times, likewise.
            types: Labels, likewise, of which 16 bits are kept; None without.

        Raises:
            MemoryError: If a tier has no room; the message says how much was asked for.
        """
        self._begin()
        self._reserve_types(types)
        if len(src) > 0:
            plan = InsertionPlan(
                self._gpu.kernels.launch, src, dst, t, self.position, self._directed
            )
            plan.read(self._view(), self._free.view(), self.chunks.max_capacity)
            self._free.reserve(plan.needed)
            self._ready(plan)

    def commit(self, position: int) -> None:
        """Insert what was reserved for; the snapshot is then `position`. Does not synchronize."""
        plan, self._pending = self._pending, None
        if not isinstance(plan, InsertionPlan):
            return
        self._note_types()
        given_up = plan.commit(self._view(), self._heads, self._fresh())
        self._count_off(plan)
        self._free.take()
        self.readers.retire(given_up)
        self._publish(position)

    @translate_oom
    def reserve_edits(self, edits: Edits, types: Tensor | None = None) -> int:
        """Plan for a change of the past; return how many entries there will be more. Synchronizes.

        Args:
            edits: Entries to put in or take out; what is not there is passed over.
            types: Of the events that are put in, as in `reserve`.

        Raises:
            MemoryError: As in `reserve`.
        """
        self._begin()
        self._reserve_types(types)
        change = self._change()
        change.edit(edits)
        self._ready(change)
        return change.gained

    @translate_oom
    def reserve_retention(self, min_t: int, max_count: int) -> int:
        """Plan to forget entries before `min_t`, and more of the oldest down to `max_count` a node.

        As `reserve_edits`.
        """
        self._begin()
        change = self._change()
        nodes = torch.arange(self._num_nodes, device=self._gpu.device)
        change.forget(nodes, min_t, max_count)
        self._ready(change)
        return change.gained

    def commit_change(self, position: int) -> None:
        """Make the change that was reserved for; cut-offs from `position`, the snapshot, see it."""
        change, self._pending = self._pending, None
        assert isinstance(change, ChangeArgs)
        self._note_types()
        number = self._num_changes + 1
        change.commit(self._view(), self._heads, self._fresh(), position, number)
        self._count_off(change)
        self._num_changes = number
        self._publish(position)

    @translate_oom
    def compact(self) -> None:
        """Give up what only cut-offs before the latest changes see, and give memory back.

        Kernels that read for a sampler launched before the latest change need what is given up:
        they are waited for, on the device. Synchronizes. Needs room for all directories, and for
        what leaves sparse chunks.

        Raises:
            MemoryError: If there is none; nothing that is to stay is lost then.
        """
        self._begin()
        self.readers.wait()
        work = Compaction(self._gpu.kernels, self._view(), self._heads)
        work.forget_past()
        sparse = work.measure(self.chunks)
        self.chunks.close()
        self._slabs.renew(work.num_rooms)
        self._ensure_chunks(work.num_entries)
        work.move(self._view(), self._fresh())
        self._count_off(work)
        for slab in self._slabs.drop_old():
            self.readers.retire((slab, None))
        self.chunks.release(sparse)
        self._free.merge(drop_rooms=True)
        self._publish(self.position)

    @translate_oom
    def move_down(self, num_bytes: int) -> None:
        """Move the oldest chunks to the host until the device holds at most `num_bytes` of them."""
        self._begin()
        self.chunks.shrink(num_bytes)
        self._publish(self.position)

    def stats(self) -> DeviceStats:
        """Count what the store holds, node by node. Synchronizes."""
        counts = torch.zeros(7, dtype=torch.int64, device=self._gpu.device)
        blocks = -(-max(self._num_nodes, 1) // THREADS)
        address = ctypes.c_uint64(counts.data_ptr())
        with self.readers.reading():
            self._gpu.kernels.launch("count_store", blocks, THREADS, self._view(), address)
        read = counts.tolist()
        device, host = (
            DeviceTier(read[tier], read[2 + tier], read[4 + tier], self.chunks.tier_bytes(tier))
            for tier in range(2)
        )
        tables = (self._heads, self._types, self.chunks.addresses, self.chunks.tiers)
        other = self._slabs.num_bytes + self._free.num_bytes + sum(x.nbytes for x in tables)
        hits, misses = self._reads.tolist()
        return DeviceStats(device, host, read[6], (hits, misses), device.bytes + host.bytes + other)

    def _begin(self) -> None:
        """Start a write: order it behind the last one, and take back what nobody reads."""
        self.readers.writing()
        self._pending = None
        if self.chunks.moved:
            self._free.merge()
            self.chunks.moved = False
        for items, classes in self.readers.reclaim():
            if classes is not None:
                self._free.give(items, classes)

    def _change(self) -> ChangeArgs:
        return ChangeArgs(self._gpu.kernels, self._view(), self.chunks.max_capacity)

    def _ready(self, pending: InsertionPlan | ChangeArgs) -> None:
        """Get the memory of what was planned."""
        self._slabs.ensure(pending.num_rooms)
        self._ensure_chunks(pending.num_entries)
        self._heads = self._grown(self._heads, pending.largest_node + 1)
        self._pending = pending

    def _ensure_chunks(self, num_entries: int) -> None:
        """Reserve room for entries, in chunks that every reader from now on can find.

        A reader launched before the tables moved would look behind the old ones' ends, so what
        shows it the new chunks' blocks comes after it. Those launched later find the new tables.
        """
        self.chunks.ensure(num_entries)
        if self.chunks.outgrown:
            self.chunks.outgrown = False
            self._publish(self.position)
            self.readers.wait()

    def _count_off(self, done: InsertionPlan | ChangeArgs | Compaction) -> None:
        self.chunks.cursor += done.num_entries
        self._slabs.used += done.num_rooms
        if not isinstance(done, Compaction):
            self._num_nodes = max(self._num_nodes, done.largest_node + 1)

    def _fresh(self) -> Fresh:
        chunks = self.chunks
        return Fresh(chunks.cursor, chunks.stride, self._slabs.address, chunks.max_capacity)

    def _publish(self, position: int) -> None:
        snapshot = Snapshot(self._view(), position)
        address = ctypes.c_uint64(self.snapshot)
        self._gpu.kernels.launch("publish_snapshot", 1, 1, address, snapshot)
        self.readers.published()
        self.position = position

    def _view(self) -> StoreView:
        return StoreView(
            self._heads.data_ptr(),
            self._num_nodes,
            self.chunks.addresses.data_ptr(),
            self.chunks.tiers.data_ptr(),
            self._types.data_ptr(),
            self._num_changes,
            0 if self.chunks.budget is None else self._reads.data_ptr(),
        )

    def _reserve_types(self, types: Tensor | None) -> None:
        self._new_types = types
        if types is not None:
            self._types = self._grown(self._types, self.position + len(types))

    def _note_types(self) -> None:
        if self._new_types is not None:
            end = self.position + len(self._new_types)
            self._types[self.position : end] = self._new_types
            self._new_types = None

    def _grown(self, table: Tensor, size: int) -> Tensor:
        """Return `table`, or a copy with room for `size` rows, the new ones 0."""
        if size <= len(table):
            return table
        grown = table.new_zeros(max(size, 2 * len(table)))
        grown[: len(table)] = table
        self.readers.retire((table, None))
        return grown
