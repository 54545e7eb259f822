"""Writes of a device store: insertion, changes of the past, compaction."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from tgflow.base.peers import Shard
from tgflow.base.units import INT64_MAX, INT64_MIN
from tgflow.cuda.device import Device
from tgflow.cuda.launch import Kernels
from tgflow.cuda.store_memory import NUM_CLASSES, Chunks, GivenUp, Need
from tgflow.cuda.structs import (
    Changing,
    Compacting,
    FreeItems,
    Fresh,
    Insertion,
    Snapshot,
    StoreView,
    Totals,
    Version,
)

THREADS = 256
SMALL_PAIRS = 4096
"""Largest batch, in pairs, inserted with two launches."""
_LANES = 16
_WARP = 32
_MOST_THREADS = 1024
_ABSENT = 2**31 - 1
_NUM_COUNTERS = NUM_CLASSES + 2
_RUN_PLAN_BYTES, _RANKS_BYTES = 32, 12
_ALIGNMENT = 16


class InsertionPlan:
    """The kernels that insert a batch, and the memory they share."""

    def __init__(
        self,
        kernels: Kernels,
        columns: Tensor,
        first_eid: int,
        directed: bool,
        max_capacity: int,
        shard: Shard,
    ) -> None:
        self._launch, self._columns, self._shard = kernels.launch, columns, shard
        sides = 1 if directed else 2
        self.num_pairs = size = sides * columns.shape[1]
        self.is_small = size <= SMALL_PAIRS
        src, dst, t = (columns.data_ptr() + 8 * i * columns.shape[1] for i in range(3))
        self._in = Insertion(
            src=src, dst=dst, t=t, first_eid=first_eid, num_pairs=size, sides=sides
        )
        self._in.fresh.max_capacity = max_capacity
        sizes = {
            "node": 4 * size,
            "pair": 8 * size,
            "run": 4 * size,
            "begin": 8 * size + 8,
            "plans": _RUN_PLAN_BYTES * size,
            "ranks": _RANKS_BYTES * size,
            "demand": 24 * size,
            "needed": 4 * _NUM_COUNTERS,
            "dirs": 8 * size,
            "places": 8 * (size + size // max_capacity + 1),
            "given_up": 16 * size,
            "given_class": 2 * size,
        }
        self._spans: dict[str, tuple[int, int]] = {}
        end = 0
        for name, num_bytes in sizes.items():
            self._spans[name] = end, end + num_bytes
            end += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        self._memory = torch.empty(end, dtype=torch.uint8, device=columns.device)
        for name, (begin, _) in self._spans.items():
            setattr(self._in, name, self._memory.data_ptr() + begin)

    def _part(self, name: str, dtype: torch.dtype) -> Tensor:
        begin, end = self._spans[name]
        return self._memory[begin:end].view(dtype)

    def plan(self, store: StoreView, free: FreeItems, totals: Totals) -> None:
        """Plan against `store`; afterwards `totals`, pinned memory, has what the batch needs."""
        self._in.store, self._in.free = store, free
        self._in.totals = ctypes.addressof(totals)
        if self.is_small:
            threads = (self.num_pairs + _WARP - 1) // _WARP * _WARP
            self._launch("insert_small_plan", 1, min(threads, _MOST_THREADS), self._in)
        else:
            self._plan_large()

    def _plan_large(self) -> None:
        src, dst = self._columns[:2]
        nodes, pairs = _sorted_pairs(src, dst, self._in.sides == 1, self._shard)
        self._columns, self._sorted = self._columns[:3], (nodes, pairs)
        self._in.node, self._in.pair = nodes.data_ptr(), pairs.data_ptr()
        run, needed = (self._part(name, torch.int32) for name in ("run", "needed"))
        demand = self._part("demand", torch.int64).view(3, -1)
        needed.zero_()
        self._each_pair("insert_mark")
        torch.cumsum(run, 0, dtype=torch.int32, out=run)
        self._each_pair("insert_list")
        self._each_pair("insert_plan")
        _prefix_sum(demand)
        self._launch("insert_totals", 1, _WARP, self._in)

    def commit(
        self,
        store: StoreView,
        heads: Tensor,
        fresh: Fresh,
        cursor: Tensor,
        slab: int,
        snapshot: int,
        following: Snapshot,
    ) -> GivenUp:
        """Write and publish the entries, advance the snapshot; return the replaced items."""
        self._in.store, self._in.fresh, self._in.heads = store, fresh, heads.data_ptr()
        self._in.cursor, self._in.slab = cursor.data_ptr(), slab
        self._in.snapshot, self._in.next = snapshot, following
        if self.is_small:
            blocks = -(-self.num_pairs * _LANES // THREADS)
            self._launch("insert_small_commit", blocks, THREADS, self._in)
        else:
            for kernel in ("insert_link", "insert_scatter", "insert_publish"):
                self._each_pair(kernel)
            self._launch("insert_finish", 1, THREADS, self._in)
        items = self._part("given_up", torch.int64)
        return GivenUp(items, self._part("given_class", torch.uint8))

    def _each_pair(self, kernel: str) -> None:
        self._launch(kernel, -(-self.num_pairs // THREADS), THREADS, self._in)


@dataclass(slots=True, eq=False)
class PlannedBatch:
    """A reserved batch."""

    plan: InsertionPlan
    totals: Totals
    need: Need
    num_nodes: int
    """Number of local ids in the store after the batch."""


def _prefix_sum(table: Tensor) -> None:
    """Replace each row of `table`, int64 `[R, N]`, by its inclusive prefix sum."""
    for row in table:
        torch.cumsum(row, 0, out=row)


def _sorted_pairs(src: Tensor, dst: Tensor, directed: bool, shard: Shard) -> tuple[Tensor, Tensor]:
    """Return the nodes of all pairs, int32 `[P]` sorted, and their 2 * row + side, int64 `[P]`.

    Nodes are local ids. Pairs of one node stay in the order of their rows. A self-loop's second
    pair is at the end, and so are pairs of nodes of other shards.
    """
    if directed:
        nodes, order = _held(src, shard).int().sort(stable=True)
        return nodes, 2 * order
    ends = torch.where(src == dst, _ABSENT, _held(dst, shard))
    nodes, order = torch.stack((_held(src, shard), ends), 1).view(-1).int().sort(stable=True)
    return nodes, order


def _held(nodes: Tensor, shard: Shard) -> Tensor:
    """Return the local ids of nodes, `_ABSENT` for those of other shards."""
    if shard.world == 1:
        return nodes
    return torch.where(shard.owns(nodes), shard.local(nodes), _ABSENT)


_THREADS = 128
_NEW_BLOCK_BYTES = 16


@dataclass(frozen=True, slots=True, eq=False)
class Edits:
    """Entries to add to nodes' pasts or to remove; columns are int64 `[N]`."""

    node: Tensor
    t: Tensor
    eid: Tensor
    nbr: Tensor
    puts_in: bool

    @classmethod
    def of_events(
        cls, src: Tensor, dst: Tensor, t: Tensor, eid: Tensor, *, puts_in: bool, directed: bool
    ) -> Edits:
        """Return the edits of events: one per event if directed or a self-loop, else two."""
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
        """Return the edits of a shard's nodes, by local id."""
        if shard.world == 1:
            return self
        kept = shard.owns(self.node).nonzero().squeeze(1)
        node, t, eid, nbr = (column[kept] for column in self.columns())
        return Edits(shard.local(node), t, eid, nbr, self.puts_in)

    def columns(self) -> list[Tensor]:
        """Return the columns node, t, eid and nbr."""
        return [self.node, self.t, self.eid, self.nbr]

    def sorted(self) -> Edits:
        """Return the edits sorted by node, then by (t, eid)."""
        order = self.eid.argsort(stable=True)
        for column in (self.t, self.node):
            order = order[column[order].argsort(stable=True)]
        return Edits(
            self.node[order], self.t[order], self.eid[order], self.nbr[order], self.puts_in
        )


class ChangeArgs:
    """Arguments of a change, not yet published; owns the tensors that kernels use."""

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
        """Compute what `edits`, on the device, require. Synchronizes."""
        edits = edits.sorted()
        nodes, counts = torch.unique_consecutive(edits.node, return_counts=True)
        begin = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        table = torch.stack((edits.t, edits.eid, edits.nbr), 1)
        self._in.edits, self._in.begin = table.data_ptr(), begin.data_ptr()
        self._in.puts_in = int(edits.puts_in)
        self._kept += [begin, table]
        self._count(nodes, largest_node)

    def forget(self, num_nodes: int, min_t: int, max_count: int) -> None:
        """Compute what removing old entries of all nodes requires. Synchronizes."""
        self._in.min_t, self._in.max_count = min_t, max_count
        self._count(torch.arange(num_nodes, device=self._device), num_nodes - 1)

    def _count(self, nodes: Tensor, largest_node: int) -> None:
        self._num_nodes = len(nodes)
        demand = nodes.new_zeros(4, max(len(nodes), 1))
        self._in.node, self._in.num_nodes = nodes.data_ptr(), len(nodes)
        self._in.demand = demand.data_ptr()
        self._kept += [nodes, demand]
        self._launch("change_count")
        _prefix_sum(demand)
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
        """Write and publish versions for cut-offs from `changed_at` on and later snapshots."""
        self._in.store, self._in.heads, self._in.fresh = store, heads.data_ptr(), fresh
        self._in.version = Version(changed_at, number)
        self._launch("change_write", ctypes.c_uint64(self._places.data_ptr()))
        self._launch("change_publish")

    def _launch(self, kernel: str, *more: ctypes.c_uint64) -> None:
        if self._num_nodes > 0:
            blocks = -(-self._num_nodes // _THREADS)
            self._kernels.launch(kernel, blocks, _THREADS, self._in, *more)


_MOVE_BYTES = 24


class Compaction:
    """Kernels over all nodes, and their tensors."""

    def __init__(self, kernels: Kernels, store: StoreView, heads: Tensor) -> None:
        self._kernels = kernels
        self._num_nodes = store.num_nodes
        self._demand = heads.new_zeros(3, max(self._num_nodes, 1))
        self._in = Compacting(store=store, heads=heads.data_ptr(), demand=self._demand.data_ptr())

    def forget_past(self) -> None:
        """Discard entries that only cut-offs before the latest changes see."""
        self._launch("compact_past")

    def measure(self, chunks: Chunks) -> list[int]:
        """Return the chunks that blocks should leave, where this reduces their number.

        Synchronizes. `num_entries` and `num_rooms` are then what the move requires.
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
        _prefix_sum(self._demand)
        self._num_moves, self.num_entries, self.num_rooms = self._demand[:, -1].tolist()
        """Blocks to move; their entries; directories in units of 32 bytes."""
        return sparse

    def move(self, store: StoreView, fresh: Fresh) -> None:
        """Move the blocks, then all directories, to fresh memory; readers follow them."""
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
