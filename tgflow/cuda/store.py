"""The block store of a graph on a GPU, with directories and recent blocks in its memory."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from tgflow.base.peers import PARTS, Shard
from tgflow.cuda.device import Device, translate_oom
from tgflow.cuda.pinned import PinnedPool
from tgflow.cuda.readers import Readers
from tgflow.cuda.store_memory import (
    Chunks,
    DirectorySlabs,
    FreeList,
    GivenUp,
    Need,
    Unread,
    UnreadTotals,
)
from tgflow.cuda.store_writes import ChangeArgs, Compaction, Edits, InsertionPlan, PlannedBatch
from tgflow.cuda.structs import Fresh, FreshCursor, Snapshot, StoreView

_P = ParamSpec("_P")
_R = TypeVar("_R")
_EVERYTHING = Shard()
_THREADS = 256


class StoreCounts(NamedTuple):
    """Size and memory of a store on any device, see `tgflow.graph.stats`."""

    num_entries: int
    max_blocks: int
    bytes: int
    reads: Sequence[int]
    """Neighbors read from each tier; on a GPU counted only with a budget."""
    tiers: Sequence[Sequence[int]]
    """Blocks, entries, capacity and bytes of the device and of the host."""


def _on_writer(
    write: Callable[Concatenate[DeviceStore, _P], _R],
) -> Callable[Concatenate[DeviceStore, _P], _R]:
    @wraps(write)
    def moved(store: DeviceStore, /, *arguments: _P.args, **options: _P.kwargs) -> _R:
        with store.on_writer():
            return write(store, *arguments, **options)

    return moved


class DeviceStore:
    """Inserts whole batches in a constant number of launches, on a stream of its own.

    One thread writes while any number sample; memory that samplers read is reused after them. A
    write is first reserved, which changes nothing that a reader can see, and then committed; only a
    reservation raises MemoryError, with the bytes requested.

    The host does not wait for the memory that a batch takes: the largest possible amount is
    reserved, and the actual totals are read when they arrive. Only where that amount is much more
    than is held already does the host wait for the batch's totals.

    `budget` limits the bytes of blocks on the device. Heads are by local id of the shard's nodes.
    """

    def __init__(
        self,
        gpu: Device,
        directed: bool,
        budget: int | None = None,
        shard: Shard = _EVERYTHING,
        first: int = 0,
    ) -> None:
        self._gpu, self._directed, self._shard = gpu, directed, shard
        self._writer = gpu.stream("writer")
        with self.on_writer():
            self._open(budget)
        self._num_nodes = self._num_changes = 0
        self.position = first
        """Events that samplers launched from now on see."""
        self._relations_first = first
        """Position of the event that the first relation is of."""
        self._pending: PlannedBatch | ChangeArgs | None = None
        self._new_relations: Tensor | None = None
        self._given_up: deque[GivenUp] = deque()
        self.readers.wait_when_dropped(self, in_host=True)

    def _open(self, budget: int | None) -> None:
        gpu = self._gpu
        self.readers = Readers(gpu)
        self.chunks = Chunks(gpu, self.readers, budget)
        self._slabs = DirectorySlabs(gpu)
        self._free = FreeList(gpu, self.chunks)
        self._pinned = PinnedPool(gpu)
        self._unread = UnreadTotals(gpu)
        self._heads = torch.zeros(1024, dtype=torch.int64, device=gpu.device)
        self._relations = torch.empty(0, dtype=torch.int16, device=gpu.device)
        self._reads = torch.zeros(2, dtype=torch.int64, device=gpu.device)
        self._cursor = self._struct(FreshCursor)
        self._cursor_slab = 0
        """Slab of the cursor."""
        self._snapshot = self._struct(Snapshot)
        self.readers.published()  # an empty state for early samplers

    def _struct(self, kind: type[ctypes.Structure]) -> Tensor:
        return torch.zeros(ctypes.sizeof(kind), dtype=torch.uint8, device=self._gpu.device)

    def on_writer(self) -> AbstractContextManager[object]:
        """Make the store's stream this thread's current stream in the context."""
        return self._gpu.on(self._writer)

    @property
    def snapshot(self) -> int:
        """Address of the store's snapshot for kernels, constant for its lifetime."""
        return self._snapshot.data_ptr()

    @translate_oom
    @_on_writer
    def reserve(
        self, size: int, stage: Callable[[Tensor], tuple[int, int]], has_relations: bool = False
    ) -> None:
        """Plan the next events and reserve memory. Waits only where that could be much.

        `stage` writes their columns to pinned memory, int64 `[3, B]`, or `[4, B]` with relations,
        of 16 bits each; it returns the largest source and destination.
        """
        self._begin()
        if size == 0:
            return
        with self._pinned.lend(8 * (3 + has_relations) * size) as room:
            staged = room.view(torch.int64).view(-1, size)
            largest_src, largest_dst = stage(staged)
            columns = self._gpu.copy_from_host(staged)
        self._reserve_relations(columns[3] if has_relations else None)
        most = self.chunks.max_capacity
        plan = InsertionPlan(
            self._gpu.kernels, columns, self.position, self._directed, most, self._shard
        )
        totals = self._unread.slot()
        plan.plan(self._view(), self._free.view(), totals)
        need = self._unread.most(plan.num_pairs, most)
        if not self._got_ahead(need):
            self._gpu.record_event().synchronize()
            self._collect()
            need = Need(totals.entries, totals.rooms, totals.blocks)
            self._ensure(need.entries, need.rooms)
        largest = largest_src if self._directed else max(largest_src, largest_dst)
        num_nodes = self._shard.count(largest + 1)
        self._heads = self._grown(self._heads, num_nodes)
        self._pending = PlannedBatch(plan, totals, need, num_nodes)

    @_on_writer
    def commit(self, position: int) -> None:
        """Insert the reserved batch and set the snapshot to `position`. Does not synchronize."""
        pending, self._pending = self._pending, None
        if not isinstance(pending, PlannedBatch):
            return
        self._note_relations()
        plan, need = pending.plan, pending.need
        self._num_nodes = max(self._num_nodes, pending.num_nodes)
        slab = 0 if self._cursor_slab == self._slabs.number else self._slabs.address
        self._cursor_slab = self._slabs.number
        store = self._view()
        where = (self._heads, self._fresh(), self._cursor, slab)
        given_up = plan.commit(store, *where, self.snapshot, Snapshot(store, position))
        self.chunks.cursor += need.entries
        self._slabs.used += need.rooms
        self.readers.retire(given_up)
        done = self.readers.published()
        growth = plan.num_pairs // self.chunks.max_capacity + 1
        slab = self._slabs.number
        batch = Unread(done, pending.totals, need, given_up, slab, growth)
        self._unread.add(batch, plan.num_pairs)
        self.position = position

    @translate_oom
    @_on_writer
    def reserve_edits(self, edits: Edits, relations: Tensor | None = None) -> int:
        """Plan a change of the past; return the number of entries gained. Synchronizes.

        Entries to remove that are missing are skipped; `relations` are those of the added events.
        """
        self._begin()
        self._await_batches()
        self._reserve_relations(None if relations is None else self._upload([relations])[0])
        change, edits = self._change(), edits.held_by(self._shard)
        if len(edits.node) > 0:
            node, t, eid, nbr = self._upload(edits.columns()).unbind()
            there = Edits(node, t, eid, nbr, edits.puts_in)
            change.edit(there, int(edits.node.max()))
        self._ready(change)
        return change.gained

    @translate_oom
    @_on_writer
    def reserve_retention(self, min_t: int, max_count: int) -> int:
        """Plan to remove entries before `min_t`, and each node's oldest beyond `max_count`.

        As `reserve_edits`.
        """
        self._begin()
        self._await_batches()
        change = self._change()
        change.forget(self._num_nodes, min_t, max_count)
        self._ready(change)
        return change.gained

    @_on_writer
    def commit_change(self, position: int) -> None:
        """Commit the reserved change; cut-offs from `position`, the snapshot, see it.

        Earlier readers do not see it: it waits for them on the device.
        """
        change, self._pending = self._pending, None
        assert isinstance(change, ChangeArgs)
        self.readers.wait()
        self._note_relations()
        number = self._num_changes + 1
        change.commit(self._view(), self._heads, self._fresh(), position, number)
        self.chunks.cursor += change.num_entries
        self._slabs.used += change.num_rooms
        self._num_nodes = max(self._num_nodes, change.largest_node + 1)
        self._unread.add_change(change.gained, change.num_blocks)
        self._num_changes = number
        self._publish(position)

    @translate_oom
    @_on_writer
    def compact(self, first: int | None = None) -> None:
        """Discard entries that only cut-offs before the latest changes see, and free memory.

        With `first`, no entry that is left is of an earlier event. Kernels of samplers launched
        before the latest change read those entries: it waits for them on the device. Synchronizes.
        Needs room for all directories, and for the blocks that leave sparse chunks; without it no
        retained entry is lost.
        """
        self._begin()
        self._await_batches()
        self.readers.wait()
        if first is not None and len(self._relations):
            self.readers.retire(self._relations)
            begin = first - self._relations_first
            self._relations = self._relations[begin : self.position - self._relations_first].clone()
            self._relations_first = first
        work = Compaction(self._gpu.kernels, self._view(), self._heads)
        work.forget_past()
        sparse = work.measure(self.chunks)
        self.chunks.close()
        self._slabs.renew(work.num_rooms)
        self._ensure_chunks(work.num_entries)
        work.move(self._view(), self._fresh())
        self.chunks.cursor += work.num_entries
        self._slabs.used += work.num_rooms
        for slab in self._slabs.drop_old():
            self.readers.retire(slab)
        self.chunks.release(sparse)
        self._free.merge(drop_rooms=True)
        self._publish(self.position)

    def stats(self) -> StoreCounts:
        """Return the store's size, counted node by node. Synchronizes."""
        tables = (self._heads, self._relations, self.chunks.addresses, self.chunks.tiers)
        other = self._slabs.num_bytes + self._free.num_bytes + sum(x.nbytes for x in tables)
        counts = torch.zeros(7, dtype=torch.int64, device=self._gpu.device)
        with self.readers.reading():
            store = self._view()
            blocks = -(-max(store.num_nodes, 1) // _THREADS)
            where = ctypes.c_uint64(counts.data_ptr())
            self._gpu.kernels.launch("count_store", blocks, _THREADS, store, where)
            found, reads = counts.tolist(), self._reads.tolist()
        tiers = [[*found[tier:6:2], self.chunks.tier_bytes(tier)] for tier in range(2)]
        total = sum(tier[3] for tier in tiers) + other
        return StoreCounts(found[2] + found[3], found[6], total, reads, tiers)

    def _begin(self) -> None:
        """Begin a write, ordered after the last one, and reclaim memory without readers."""
        self.readers.writing()
        self._pending = None
        self._collect()
        if self.chunks.moved:
            self._free.merge()
            self.chunks.moved = False
        for thing in self.readers.reclaim():
            if isinstance(thing, GivenUp):
                self._given_up.append(thing)
        while self._given_up and self._given_up[0].count is not None:
            self._free.give(self._given_up.popleft())

    def _upload(self, columns: list[Tensor]) -> Tensor:
        """Return host columns as int64 `[C, B]` on the device, in one copy."""
        shape = len(columns), len(columns[0])
        with self._pinned.lend(8 * shape[0] * shape[1]) as room:
            staged = room.view(torch.int64).view(shape)
            torch.stack(columns, out=staged)
            return self._gpu.copy_from_host(staged)

    def _collect(self) -> None:
        """Correct the counters by the totals of finished batches; never waits."""
        for batch in self._unread.read():
            totals, most = batch.totals, batch.most
            assert totals.entries <= most.entries
            assert totals.rooms <= most.rooms
            assert totals.blocks <= most.blocks
            self.chunks.cursor -= most.entries - totals.entries
            if batch.slab == self._slabs.number:
                self._slabs.used -= most.rooms - totals.rooms

    def _await_batches(self) -> None:
        """Wait for all batches, so that counters are exact."""
        self._unread.wait()
        self._collect()

    def _got_ahead(self, most: Need) -> bool:
        """Return whether a batch's upper bound is reserved; only small amounts are."""
        if most.entries > max(self.chunks.room, self.chunks.ahead):
            return False
        if most.rooms > max(self._slabs.room, self._slabs.ahead):
            return False
        try:
            self._ensure(most.entries, most.rooms)
        except MemoryError:  # its actual size may still fit
            return False
        return True

    def _change(self) -> ChangeArgs:
        return ChangeArgs(self._gpu, self._view(), self.chunks.max_capacity)

    def _ready(self, pending: ChangeArgs) -> None:
        self._ensure(pending.num_entries, pending.num_rooms)
        self._heads = self._grown(self._heads, pending.largest_node + 1)
        self._pending = pending

    def _ensure(self, num_entries: int, num_rooms: int) -> None:
        self._slabs.ensure(num_rooms)
        self._ensure_chunks(num_entries)

    def _ensure_chunks(self, num_entries: int) -> None:
        """Reserve room for entries, in chunks that all later readers can find.

        A reader launched before the tables moved would read past the old tables' ends, so new
        chunks' blocks are published after it. Later readers use the new tables.
        """
        self.chunks.ensure(num_entries)
        if self.chunks.outgrown:
            self.chunks.outgrown = False
            self._publish(self.position)
            self.readers.wait()

    def _fresh(self) -> Fresh:
        """Return the start of fresh memory, which is exact once no batch is pending."""
        chunks = self.chunks
        return Fresh(chunks.cursor, chunks.stride, self._slabs.address, chunks.max_capacity)

    def _publish(self, position: int) -> None:
        """Move the snapshot and the cursor. Synchronizes."""
        self._await_batches()
        cursor = FreshCursor(self.chunks.cursor, self._slabs.address, 0)
        self._cursor_slab = self._slabs.number
        where = ctypes.c_uint64(self.snapshot), ctypes.c_uint64(self._cursor.data_ptr())
        snapshot = Snapshot(self._view(), position)
        self._gpu.kernels.launch("publish_snapshot", 1, 1, where[0], snapshot, where[1], cursor)
        self.readers.published()
        self.position = position

    def _view(self) -> StoreView:
        return StoreView(
            self._heads.data_ptr(),
            self._num_nodes,
            self.chunks.addresses.data_ptr(),
            self.chunks.tiers.data_ptr(),
            # by position: the kernels read no earlier ones
            self._relations.data_ptr() - 2 * self._relations_first if len(self._relations) else 0,
            self._num_changes,
            0 if self.chunks.budget is None else self._reads.data_ptr(),
            self._shard.parts.start,
            PARTS - len(self._shard.parts),
        )

    def _reserve_relations(self, relations: Tensor | None) -> None:
        self._new_relations = relations
        if relations is not None:
            size = self.position + len(relations) - self._relations_first
            self._relations = self._grown(self._relations, size)

    def _note_relations(self) -> None:
        if self._new_relations is not None:
            start = self.position - self._relations_first
            self._relations[start : start + len(self._new_relations)] = self._new_relations
            self._new_relations = None

    def _grown(self, table: Tensor, size: int) -> Tensor:
        """Return `table`, or a copy of it with `size` rows, padded with 0."""
        if size <= len(table):
            return table
        grown = table.new_zeros(max(size, 2 * len(table)))
        grown[: len(table)] = table
        self.readers.retire(table)
        return grown
