"""Overwritten versions of a node memory: a ring of rows, linked per node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from tgflow.base.free_memory import discard
from tgflow.nn._native import version_links, version_slots
from tgflow.nn.frozen import Freezer

_BYTES_AT_ONCE = 1 << 30
"""Address space of the rows of a new ring."""
_PAGE = 1 << 12
"""Rows that are frozen at once."""
ROWS_PER_EVENT = 2
"""Most rows that an event overwrites: those of its two nodes."""
LINK_WIDTH = 3
NODE, SINCE = range(2)
ORIGIN_WIDTH = 2
NO_VERSION = -1
_NEVER = -(1 << 62)
COLUMNS = ("rows", "clock", "origin")


class VersionHistory(nn.Module):
    """The rows overwritten by the last `num_events` events: two for each, at most.

    The history of a node depends on the log alone, never on the rows of other nodes: a history of
    some of the nodes keeps the same rows of them as a history of all. The events of a write count
    together: their overwritten rows are dropped when the first of them is too far back.

    Rows are numbered consecutively; number n is in slot n mod capacity until n + capacity is
    written. A row links to its node's previous one and, as in Myers' skew-binary lists (1983), to
    one much further back, so that a lookup takes logarithmically many steps. The CPU's memory of
    dropped rows is freed before their slots are written again.

    On a device kernels read and append (`tgflow.cuda.memory`), by the same links. The counts are
    there too, and the ring is allocated in full, so that nothing synchronizes.
    """

    rows: Tensor
    clock: Tensor
    link: Tensor
    origin: Tensor
    """int64 `[slots, 2]`: a row's node, and the position of the first event of the write that
    overwrote it."""
    head: Tensor
    counts: Tensor
    """int64 `[2]`: `next` and `position`, of a history on a device."""

    def __init__(self, num_events: int, width: int, clock_width: int, position: int = 0) -> None:
        super().__init__()
        self.num_events = num_events
        self.capacity = ROWS_PER_EVENT * num_events
        self._on_host = True
        self._freezer = Freezer()
        self.register_buffer("rows", torch.zeros(0, width), persistent=False)
        int_table = torch.zeros(0, clock_width, dtype=torch.int64)
        self.register_buffer("clock", int_table, persistent=False)
        self.register_buffer("link", int_table.new_zeros(0, LINK_WIDTH), persistent=False)
        self.register_buffer("origin", int_table.new_zeros(0, ORIGIN_WIDTH), persistent=False)
        self.register_buffer("head", int_table.new_full((0,), NO_VERSION), persistent=False)
        self.register_buffer("counts", int_table.new_zeros(2), persistent=False)
        self._count(0, position)

    @property
    def next(self) -> int:
        """The number of the next row. Synchronizes with a device."""
        return self._next if self._on_host else int(self.counts[0])

    @property
    def position(self) -> int:
        """The log position of the last write. Synchronizes with a device."""
        return self._position if self._on_host else int(self.counts[1])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move to another device, the counts included."""
        self._freezer.keep()
        self._count(self.next, self.position)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._on_host = self.rows.device.type == "cpu"
        if not self._on_host:
            self._reserve(self.capacity)
        return self

    def _count(self, number: int, position: int) -> None:
        self._next, self._position = number, position
        self._freed = self._free_at = 0
        self.counts[0], self.counts[1] = number, position

    def __len__(self) -> int:
        """Return the number of readable rows. Synchronizes with a device."""
        return len(self._kept_slots())

    def _kept_slots(self) -> Tensor:
        origin = self.origin[: min(self.next, self.capacity)]
        return (origin[:, SINCE] >= self.position - self.num_events).nonzero().squeeze(1)

    def with_events(self, num_events: int, heads_of: Callable[[Tensor], Tensor]) -> VersionHistory:
        other = VersionHistory(num_events, self.rows.shape[1], self.clock.shape[1])
        other.to(self.rows.device)
        other.resize(len(self.head))
        other.load_state_dict(self.state_dict(), heads_of)
        return other

    def resize(self, num_nodes: int) -> None:
        head = self.head.new_full((num_nodes,), NO_VERSION)
        head[: len(self.head)] = self.head
        self.head = head

    def reset(self) -> None:
        self._freezer.keep()
        self._count(0, 0)
        self.head.fill_(NO_VERSION)

    def append(
        self, nodes: Tensor, heads: Tensor, rows: Tensor, clock: Tensor, position: int
    ) -> None:
        """Keep the rows overwritten by a write at a log position: one of each of distinct nodes.

        Every write calls it, also one without rows. Only the last `capacity` rows are kept. CPU
        only. The nodes' lists begin at `heads`, as for `read`.
        """
        self._append(nodes, heads, rows, clock, self._position)
        self._position = position

    def _append(
        self, nodes: Tensor, heads: Tensor, rows: Tensor, clock: Tensor, since: int
    ) -> None:
        nodes, heads, rows, clock = (x[-self.capacity :] for x in (nodes, heads, rows, clock))
        if len(nodes) == 0:
            return
        self._reserve(self._next + len(nodes))
        number = torch.arange(self._next, self._next + len(nodes))
        slot = number % self.capacity
        link = nodes.new_empty(len(nodes), LINK_WIDTH)
        # before the rows it reads are overwritten
        version_links(**self._ring(), node=heads.contiguous(), out=link)
        self._freezer.keep(slot)
        self.rows.index_copy_(0, slot, rows)
        self.clock.index_copy_(0, slot, clock)
        self.link.index_copy_(0, slot, link)
        origin = torch.stack([nodes, torch.full_like(nodes, since)], dim=1)
        self.origin.index_copy_(0, slot, origin)
        self.head.index_copy_(0, heads, number)
        self._next += len(nodes)
        if self._next >= self._free_at:
            self._free_dropped()

    def _free_dropped(self) -> None:
        """Free the pages of rows that are not read any more; their links stay."""
        self._free_at = self._next + self.capacity // 32
        begin, end = max(self._freed, self._next - self.capacity), self._next - len(self)
        self._freed, at = end, begin % self.capacity
        stop = at + end - begin
        for first, last in ((at, min(stop, self.capacity)), (0, stop - self.capacity)):
            if first < last:
                self._freezer.keep(torch.arange(first, last))
                discard(self.rows[first:last])

    def _ring(self) -> dict[str, Any]:
        columns = {name: getattr(self, name) for name in ("clock", "link", "origin", "head")}
        return {**columns, "counts": (self._next, self._position), "num_events": self.num_events}

    def forget(self, first: int, settled: Tensor, dead: Tensor) -> None:
        """Drop the rows that were overwritten at a log position or before.

        `settled` are heads of the nodes whose current rows are of that position or before, and
        `dead` those of them whose lists end.
        """
        size, oldest = min(self.next, self.capacity), max(0, self.next - self.capacity)
        old = (self.clock[:size, -1] <= first).nonzero().squeeze(1)
        number = torch.cat([self.head[settled], self.link[old, 0]])
        slots = number[number >= oldest] % max(1, self.capacity)
        self._freezer.keep(slots)
        self.origin[slots, SINCE] = _NEVER
        self.head.index_fill_(0, dead, NO_VERSION)

    def read(self, heads: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Return the latest version at or before each position, zeros if it is not kept.

        CPU only. Lists begin at `heads`, int64 `[R]`: at their nodes, or wherever `append` put
        them.
        """
        if len(self.rows) == 0:
            num = len(heads)
            rows = self.rows.new_zeros(num, self.rows.shape[1])
            return rows, self.clock.new_zeros(num, self.clock.shape[1])
        slot = heads.new_empty(len(heads))
        asked: dict[str, Any] = {"node": heads.contiguous(), "position": position.contiguous()}
        version_slots(**self._ring(), **asked, out=slot)
        missing, slot = (slot < 0).unsqueeze(1), slot.clamp(min=0)
        rows = self.rows.index_select(0, slot).masked_fill_(missing, 0.0)
        return rows, self.clock.index_select(0, slot).masked_fill_(missing, 0)

    def _reserve(self, size: int) -> None:
        """Grow the ring, up to its capacity, so that `size` rows fit; slots do not move.

        On the CPU that is address space, whose pages are taken as rows are written: a ring that
        doubled would stop all else for as long as it is copied.
        """
        if len(self.rows) >= min(size, self.capacity):
            return
        at_once = _BYTES_AT_ONCE // (4 * self.rows.shape[1] + 1)
        slots = min(self.capacity, max(size, 2 * len(self.rows), at_once))
        for name in (*COLUMNS, "link"):
            old = getattr(self, name)
            if old.is_cpu:
                new = torch.from_numpy(np.zeros((slots, old.shape[1]), old.numpy().dtype))
            else:
                new = old.new_zeros(slots, old.shape[1])
            new[: len(old)] = old
            setattr(self, name, new)

    def state_dict(self) -> dict[str, Tensor]:  # type: ignore[override]
        """Return copies of the kept rows by (origin, node), whatever the layout of the ring."""
        return self.frozen()()

    def frozen(self) -> Callable[[], dict[str, Tensor]]:
        """Return a function that returns `state_dict` as of now, once; for another thread."""
        index, slot = {"events": torch.tensor([self.position, self.num_events])}, self._kept_slots()
        if not self._on_host:
            slot = slot[in_order(self.origin.index_select(0, slot))]
            state = {name: getattr(self, name).index_select(0, slot) for name in COLUMNS}
            return lambda: state | index
        size = min(self.next, self.capacity)
        rows = self._freezer.freeze(size, lambda at: [getattr(self, name)[at] for name in COLUMNS])
        pages = (torch.unique_consecutive(slot // _PAGE) * _PAGE).tolist()

        def take() -> dict[str, Tensor]:
            out = [torch.empty_like(getattr(self, name)[:size]) for name in COLUMNS]
            rows.copy_to(out, (slice(i, min(i + _PAGE, size)) for i in pages))
            state = dict(zip(COLUMNS, out, strict=True))
            order = in_order(state["origin"].index_select(0, slot))
            return {name: x.index_select(0, slot[order]) for name, x in state.items()} | index

        return take

    def load_state_dict(  # type: ignore[override]
        self, state: Mapping[str, Tensor], heads_of: Callable[[Tensor], Tensor] = torch.clone
    ) -> None:
        """Load that of as many nodes; `heads_of` returns where their lists begin."""
        made = self
        if not self._on_host:
            made = VersionHistory(self.num_events, self.rows.shape[1], self.clock.shape[1])
            made.resize(len(self.head))
        made.reset()
        columns = {name: state[name].cpu() for name in COLUMNS}
        since, sizes = torch.unique_consecutive(columns["origin"][:, SINCE], return_counts=True)
        writes = (torch.split(columns[name], sizes.tolist()) for name in COLUMNS)
        for first, rows, clock, origin in zip(since.tolist(), *writes, strict=True):
            made._append(nodes := origin[:, NODE], heads_of(nodes), rows, clock, first)
        made._count(made._next, int(state["events"][0]))
        for name in () if made is self else (*COLUMNS, "link", "head", "counts"):
            table = getattr(made, name)
            getattr(self, name)[: len(table)] = table.to(self.rows.device)


def in_order(origin: Tensor) -> Tensor:
    """Return the order of rows by the write that overwrote them, then by node."""
    order = torch.arange(len(origin), device=origin.device)
    for column in (NODE, SINCE):
        order = order[origin[order, column].argsort(stable=True)]
    return order
