"""A batch on its way into a device store: planned on the device, then committed."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from tgflow.cuda.free_lists import NUM_CLASSES
from tgflow.cuda.launch import Kernels, prefix_sum
from tgflow.cuda.structs import FreeItems, Fresh, Insertion, Snapshot, StoreView, Totals
from tgflow.cuda.unread import GivenUp, Need
from tgflow.peers import Shard

THREADS = 256
SMALL_PAIRS = 4096
"""A batch of no more takes two launches."""
_LANES = 16
_WARP = 32
_MOST_THREADS = 1024
_ABSENT = 2**31 - 1
_NUM_COUNTERS = NUM_CLASSES + 2
_RUN_PLAN_BYTES, _RANKS_BYTES = 32, 12
_ALIGNMENT = 16


class InsertionPlan:
    """The kernels of a batch, and the memory that they hand on to each other.

    Args:
        kernels: Of the device.
        columns: `src`, `dst` and `t` of at least one event, int64 `[3 or more, B]` on the device.
        first_eid: The first one's position.
        directed: Whether `src` alone gets a neighbor.
        max_capacity: Entries of a block at most.
        shard: Whose neighbors are inserted; the others' pairs are absent.
    """

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
        self._parts = _Parts(columns.device)
        for name, num_bytes in (
            *(("node", 4 * size), ("pair", 8 * size), ("run", 4 * size), ("begin", 8 * size + 8)),
            *(("plans", _RUN_PLAN_BYTES * size), ("ranks", _RANKS_BYTES * size)),
            *(("demand", 24 * size), ("needed", 4 * _NUM_COUNTERS), ("dirs", 8 * size)),
            ("places", 8 * (size + size // max_capacity + 1)),
            *(("given_up", 16 * size), ("given_class", 2 * size)),
        ):
            self._parts.add(name, num_bytes)
        self._parts.place(self._in)

    def plan(self, store: StoreView, free: FreeItems, totals: Totals) -> None:
        """Plan against `store`; what is needed is in `totals`, pinned memory, when that is done."""
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
        run, needed = (self._parts.view(name, torch.int32) for name in ("run", "needed"))
        demand = self._parts.view("demand", torch.int64).view(3, -1)
        needed.zero_()
        self._each_pair("insert_mark")
        torch.cumsum(run, 0, dtype=torch.int32, out=run)
        self._each_pair("insert_list")
        self._each_pair("insert_plan")
        prefix_sum(demand)
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
        """Write and publish the entries and move the snapshot; return what was given up.

        Args:
            store: As given to `plan`, but with the chunks that were added since.
            heads: With room for the largest node.
            fresh: How fresh memory lies, but for where it begins.
            cursor: The struct `FreshCursor`, which knows that.
            slab: Where directories go on instead, or 0.
            snapshot: Address of the struct `Snapshot`.
            following: What it becomes.
        """
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
        items = self._parts.view("given_up", torch.int64)
        return GivenUp(items, self._parts.view("given_class", torch.uint8))

    def _each_pair(self, kernel: str) -> None:
        self._launch(kernel, -(-self.num_pairs // THREADS), THREADS, self._in)


@dataclass(slots=True, eq=False)
class PlannedBatch:
    """A batch that was reserved for."""

    plan: InsertionPlan
    totals: Totals
    need: Need
    num_nodes: int
    """Local ids that the store then knows of."""


class _Parts:
    """Parts of one piece of device memory, by the names that the struct has for them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spans: dict[str, tuple[int, int]] = {}
        self._end = 0

    def add(self, name: str, num_bytes: int) -> None:
        self._spans[name] = self._end, self._end + num_bytes
        self._end += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT

    def place(self, struct: Insertion) -> None:
        """Get the memory and write the parts' addresses to `struct`."""
        self._memory = torch.empty(self._end, dtype=torch.uint8, device=self._device)
        base = self._memory.data_ptr()
        for name, (begin, _) in self._spans.items():
            setattr(struct, name, base + begin)

    def view(self, name: str, dtype: torch.dtype) -> Tensor:
        begin, end = self._spans[name]
        return self._memory[begin:end].view(dtype)


def _sorted_pairs(src: Tensor, dst: Tensor, directed: bool, shard: Shard) -> tuple[Tensor, Tensor]:
    """Return the nodes of all pairs, int32 `[P]` sorted, and 2 * row + side of each, int64 `[P]`.

    Nodes are local ids. Pairs of one node stay in the order of their rows. A self-loop's second
    pair is at the end, and so are pairs of nodes that are not held.
    """
    if directed:
        nodes, order = _held(src, shard).int().sort(stable=True)
        return nodes, 2 * order
    ends = torch.where(src == dst, _ABSENT, _held(dst, shard))
    nodes, order = torch.stack((_held(src, shard), ends), 1).view(-1).int().sort(stable=True)
    return nodes, order


def _held(nodes: Tensor, shard: Shard) -> Tensor:
    """Return the local ids of nodes, `_ABSENT` where they are not held."""
    if shard.world == 1:
        return nodes
    return torch.where(shard.owns(nodes), shard.local(nodes), _ABSENT)
