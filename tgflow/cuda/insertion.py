"""A batch on its way into a device store: planned on the device, read back once, then committed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tgflow.cuda.free_lists import NUM_CLASSES
from tgflow.cuda.scan import prefix_sum
from tgflow.cuda.structs import FreeItems, Fresh, Insertion, StoreView

THREADS = 256
_ABSENT = 2**31 - 1
_RUN_PLAN_BYTES, _RANKS_BYTES = 32, 12

Launch = Callable[..., None]


class InsertionPlan:
    """What a batch needs, once `read` has been called; holds the tensors that kernels work on.

    Args:
        launch: Of `Kernels`.
        src, dst, t: The batch's columns, int64 `[B]` on the device, at least one event.
        first_eid: The first one's position.
        directed: Whether `src` alone gets a neighbor.
    """

    def __init__(
        self, launch: Launch, src: Tensor, dst: Tensor, t: Tensor, first_eid: int, directed: bool
    ) -> None:
        self._launch = launch
        self._columns = (src, dst, t)
        self._largest = src.max() if directed else torch.maximum(src.max(), dst.max())
        nodes, self._pair = _sorted_pairs(src, dst, directed)
        self._nodes = nodes
        size = len(nodes)
        self._run = torch.empty_like(nodes)
        self._begin = src.new_empty(size + 1)
        self._demand = src.new_empty(3, size)
        self._needed = torch.zeros(NUM_CLASSES + 2, dtype=torch.int32, device=src.device)
        plan = src.new_empty(size, _RUN_PLAN_BYTES, dtype=torch.uint8)
        ranks = src.new_empty(size, _RANKS_BYTES, dtype=torch.uint8)
        self._kept = [plan, ranks]
        self._in = Insertion(
            src=src.data_ptr(),
            dst=dst.data_ptr(),
            t=t.data_ptr(),
            first_eid=first_eid,
            num_pairs=size,
            node=nodes.data_ptr(),
            pair=self._pair.data_ptr(),
            run=self._run.data_ptr(),
            begin=self._begin.data_ptr(),
            plans=plan.data_ptr(),
            ranks=ranks.data_ptr(),
            demand=self._demand.data_ptr(),
            needed=self._needed.data_ptr(),
        )

    def read(self, store: StoreView, free: FreeItems, max_capacity: int) -> None:
        """Plan against `store` and read back what is needed: the one wait of an insertion."""
        self._in.store, self._in.free = store, free
        self._in.fresh.max_capacity = max_capacity
        self._each_pair("insert_mark")
        torch.cumsum(self._run, 0, dtype=torch.int32, out=self._run)
        self._each_pair("insert_list")
        self._each_pair("insert_plan")
        prefix_sum(self._demand)
        totals = torch.cat(
            [self._run[-1:], self._demand[:, -1], self._needed[NUM_CLASSES:], self._largest[None]]
        )
        self.num_runs, self._num_blocks, self.num_entries, self.num_rooms, *rest = totals.tolist()
        """Runs; fresh entries; fresh directories in units of 32 bytes."""
        self.num_regrown, self.num_replaced, self.largest_node = rest
        self._make_room()

    def _make_room(self) -> None:
        """Allocate what `commit` works on: it comes after the log, and must not fail."""
        device, num_runs = self._nodes.device, self.num_runs
        places = torch.empty(self._num_blocks + 1, dtype=torch.int64, device=device)
        dirs = torch.empty(num_runs, dtype=torch.int64, device=device)
        self._given_up = torch.empty(2 * num_runs, dtype=torch.int64, device=device)
        self._given_class = torch.empty(2 * num_runs, dtype=torch.uint8, device=device)
        self._in.places, self._in.dirs = places.data_ptr(), dirs.data_ptr()
        self._in.given_up = self._given_up.data_ptr()
        self._in.given_class = self._given_class.data_ptr()
        self._kept += [places, dirs]

    @property
    def needed(self) -> Tensor:
        """What was needed of each size class, free or fresh, int32 `[192]`."""
        return self._needed[:NUM_CLASSES]

    def commit(self, store: StoreView, heads: Tensor, fresh: Fresh) -> tuple[Tensor, Tensor]:
        """Write and publish the entries; return what was given up, and its size classes.

        Args:
            store: As given to `read`, but with the chunks that were added since.
            heads: With room for the largest node.
            fresh: Where the fresh memory lies.
        """
        self._in.store, self._in.fresh, self._in.heads = store, fresh, heads.data_ptr()
        self._each_run("insert_link")
        self._each_pair("insert_scatter")
        self._each_run("insert_publish")
        return self._given_up, self._given_class

    def _each_pair(self, kernel: str) -> None:
        self._launch(kernel, -(-len(self._nodes) // THREADS), THREADS, self._in)

    def _each_run(self, kernel: str) -> None:
        self._launch(kernel, -(-self.num_runs // THREADS), THREADS, self._in)


def _sorted_pairs(src: Tensor, dst: Tensor, directed: bool) -> tuple[Tensor, Tensor]:
    """Return the nodes of all pairs, int32 `[P]` sorted, and 2 * row + side of each, int64 `[P]`.

    Pairs of one node stay in the order of their rows. A self-loop's second pair is at the end.
    """
    if directed:
        nodes, order = src.int().sort(stable=True)
        return nodes, 2 * order
    ends = torch.where(src == dst, _ABSENT, dst)
    nodes, order = torch.stack((src, ends), 1).view(-1).int().sort(stable=True)
    return nodes, order
