"""Memory of nodes: a row per node, now and as it was at earlier log positions."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from tgflow.base.peers import PARTS
from tgflow.cuda.device import device_of
from tgflow.nn.frozen import Freezer
from tgflow.nn.history import COLUMNS, NODE, ORIGIN_WIDTH, SINCE, VersionHistory, in_order
from tgflow.nn.memory_table import MemoryTable, RowSlots, TensorTable, check_memory_table, grow_to

if TYPE_CHECKING:
    from tgflow.cuda.memory import MemoryBuffers, Versions

LAST_UPDATE, MAIL_T, HAS_MAIL, POSITION = range(4)
CLOCK_WIDTH = 4


@dataclass(frozen=True, slots=True, eq=False)
class MemoryRows:
    """The state of some nodes: copies, without gradients."""

    state: Tensor
    """float32 `[U, dim + mail_dim]`: memory and mail concatenated, zeros if there is none."""
    clock: Tensor
    """int64 `[U, 4]`: `last_update`, `mail_t`, `has_mail`, and the version's position."""
    dim: int
    """Width of the memory."""
    nodes: Tensor | None = None
    """int64 `[U]`: their nodes, if all rows are current ones on the CPU; else None."""

    def __len__(self) -> int:
        return len(self.clock)

    @property
    def memory(self) -> Tensor:
        """float32 `[U, dim]`, a view."""
        return self.state[:, : self.dim]

    @property
    def mail(self) -> Tensor:
        """float32 `[U, mail_dim]`, a view."""
        return self.state[:, self.dim :]

    @property
    def last_update(self) -> Tensor:
        """int64 `[U]`: the tick of the last event in `memory`; of the mail, if there was none."""
        return self.clock[:, LAST_UPDATE]

    @property
    def mail_t(self) -> Tensor:
        """int64 `[U]`: the tick of the mail's last event."""
        return self.clock[:, MAIL_T]

    @property
    def has_mail(self) -> Tensor:
        """Bool `[U]`: whether mail is pending for the memory."""
        return self.clock[:, HAS_MAIL] != 0

    def within(self, since: Tensor | None) -> MemoryRows:
        """Return the rows, those without an event since a tick, int64 `[1]`, as initial ones."""
        if since is None:
            return self
        is_within = (self.mail_t >= since).unsqueeze(1)
        state, clock = (x.where(is_within, torch.zeros_like(x)) for x in (self.state, self.clock))
        return MemoryRows(state, clock, self.dim)


HISTORY = "history."
"""Prefix of the names of a history's tensors."""
NODES = "nodes"
"""Name of the nodes of saved rows, ascending; without them row i is node i's."""


def merge_parts(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the state of the memory of all nodes from the parts of `NodeMemory.parted`, in order.

    KeyError if a tensor is missing, ValueError if parts are of different memories.
    """
    step, sizes = len(parts), [len(each["clock"]) for each in parts]
    ends = [part + step * (size - 1) + 1 for part, size in enumerate(sizes) if size]
    state = {}
    if any(NODES in each for each in parts):
        state = {name: torch.cat([part[name] for part in parts]) for name in (NODES, *_OF_ROWS)}
        order = state[NODES].argsort()
        state = {name: x[order] for name, x in state.items()}
    for name in _OF_ROWS if NODES not in state else ():
        state[name] = parts[0][name].new_zeros(max(ends, default=0), parts[0][name].shape[1])
        for part, found in enumerate(parts):
            state[name][part : part + step * sizes[part] : step] = found[name]
    if not any(HISTORY + "events" in each for each in parts):
        return state
    events = [each[HISTORY + "events"] for each in parts]
    if any(not torch.equal(each, events[0]) for each in events):
        raise ValueError("parts of the saved memory keep histories of different events")
    columns = {name: torch.cat([each[HISTORY + name] for each in parts]) for name in COLUMNS}
    order = in_order(columns["origin"])
    merged = {HISTORY + name: x[order] for name, x in columns.items()}
    return state | merged | {HISTORY + "events": events[0]}


def num_nodes_in(state: Mapping[str, Tensor]) -> int:
    """Return the largest node with a row in a memory's state, plus one."""
    nodes = state.get(NODES)
    if nodes is None:
        return len(state["clock"])
    return int(nodes[-1]) + 1 if len(nodes) else 0


def _checked_history(
    state: Mapping[str, Tensor], dim: int, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return the history in a memory's state; raise ValueError unless it is complete and valid."""
    rows, clock = state["rows"], state["clock"]
    _check("rows", rows, dtype, dim)
    _check("clock", clock, torch.int64, CLOCK_WIDTH, len(rows))
    kept = state.get(NODES)
    if kept is not None:
        is_ordered = kept.dtype == torch.int64 and kept.shape == (len(rows),)
        if not is_ordered or bool((kept < 0).any()) or bool((kept.diff() <= 0).any()):
            raise ValueError(f"the saved memory's nodes do not rise from 0 on, one a row: {kept}")
    history = {k.removeprefix(HISTORY): v for k, v in state.items() if k.startswith(HISTORY)}
    if not history:
        return history
    origin, events = history["origin"], history["events"]
    _check("history.origin", origin, torch.int64, ORIGIN_WIDTH)
    _check("history.rows", history["rows"], dtype, dim, len(origin))
    _check("history.clock", history["clock"], torch.int64, CLOCK_WIDTH, len(origin))
    if events.dtype != torch.int64 or events.shape != (2,):
        raise ValueError(f"history.events is {events.dtype} {tuple(events.shape)}, not int64 (2,)")
    position, num_events = events.tolist()
    if num_events < 1 or position < 0:
        raise ValueError(f"the saved memory keeps a history of {num_events} events to {position}")
    nodes, since = origin[:, NODE], origin[:, SINCE]
    is_known = (nodes >= 0) & (nodes < len(clock)) if kept is None else torch.isin(nodes, kept)
    if not bool(is_known.all()):
        raise ValueError(f"the saved history has nodes that the saved memory lacks: {nodes}")
    if len(since) and (
        int(since[0]) < 0 or int(since[-1]) > position or bool((since.diff() < 0).any())
    ):
        raise ValueError(f"history.origin has positions that do not rise from 0 to {position}")
    return history


def _by_node(nodes: Tensor) -> Tensor:
    """Return the rows that have nodes, in the order of these."""
    used = (nodes >= 0).nonzero().squeeze(1)
    return used[nodes[used].argsort()]


def _split(x: Tensor, of: Tensor, num_parts: int) -> Sequence[Tensor]:
    """Return the items of each part, in order; `of` has the part of each."""
    order = of.argsort(stable=True)
    return torch.split(x[order], of.bincount(minlength=num_parts).tolist())


def _check(
    name: str, found: Tensor, dtype: torch.dtype, width: int, size: int | None = None
) -> None:
    shape = (len(found) if size is None and found.ndim else size, width)
    if found.dtype != dtype or found.shape != shape:
        raise ValueError(
            f"the saved memory's {name} is {found.dtype} {tuple(found.shape)}, this one's "
            f"{dtype} {shape}; build the model with the saved configuration"
        )


_OF_ROWS = ("rows", "clock")
_PAGE_BYTES = 4 << 20


class NodeMemory(nn.Module):
    """A row of memory and mail per node, versioned: a version is valid from a log position on.

    Rows start at zero, at position 0, and are added with new nodes. After `keep_past` an
    overwritten row moves into a bounded history, from which replayed events read their nodes'
    earlier versions. A version dropped from the history reads as the initial state, never as a
    later one: this may cost accuracy, but nothing leaks from the future.

    Row i is node i's until `forget`, which gives the rows of forgotten nodes to others. On a device
    they are only reset, and its memory has a row for every node.

    Rows are in a table; the default is a buffer that follows `Module.to`, as clocks (32 bytes a
    node) and history always do. Another table stays in place, so memory may exceed a GPU's; results
    do not depend on it.

    On a device, reads and writes do not synchronize within `covering`, if the rows are a buffer.

    Args:
        dim: Width of the memory, at least 1.
        mail_dim: Width of the mail, at least 0.
        table: An empty `FeatureTable` of `dim + mail_dim` float32, not on disk,
            changed by this memory alone. None: a buffer of the module.

    Raises:
        ValueError: If a width is too small, or the table cannot hold the rows.
    """

    clock: Tensor
    seen: Tensor
    """int64 `[]`: the largest node so far plus one, of a memory on a device."""
    history: VersionHistory | None
    """Overwritten rows; none before `keep_past`."""

    def __init__(self, dim: int, mail_dim: int, table: MemoryTable | None = None) -> None:
        super().__init__()
        if dim < 1 or mail_dim < 0:
            raise ValueError(
                f"dim must be at least 1 and mail_dim at least 0, got {dim} and {mail_dim}"
            )
        self.dim, self.mail_dim = dim, mail_dim
        self._num_nodes = 0
        self._covered: int | None = None
        self._is_lost: Tensor | None = None
        self.table = TensorTable(dim + mail_dim) if table is None else table
        check_memory_table(self.table, dim + mail_dim)
        clock = torch.zeros(0, CLOCK_WIDTH, dtype=torch.int64)
        self.register_buffer("clock", clock, persistent=False)
        self.register_buffer("seen", clock.new_zeros(()), persistent=False)
        self.history = None
        self._freezer = Freezer()
        self._forgets = False
        self.slots: RowSlots | None = None
        """Rows by node, of a memory on the CPU that has forgotten some; None: row i is node i's."""

    @property
    def num_nodes(self) -> int:
        """The largest node read or written so far, plus one. Synchronizes with a device."""
        return self._num_nodes if self.clock.is_cpu else int(self.seen)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._freezer.keep()
        self._set_num_nodes(self.num_nodes)
        state = None if self.slots is None else self.state_dict()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if state is not None:
            self.load_state_dict(state)
        return self

    def _set_num_nodes(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes
        self.seen.fill_(num_nodes)

    @property
    def num_rows(self) -> int:
        """Rows held: one for each node that has not been forgotten, and the overwritten ones."""
        return self.num_kept + (0 if self.history is None else len(self.history))

    @property
    def num_kept(self) -> int:
        """Nodes that have a row."""
        return self.num_nodes - self.num_forgotten

    @property
    def num_forgotten(self) -> int:
        """Nodes that have none, of a memory on the CPU that has forgotten some."""
        return 0 if self.slots is None else self._num_nodes - len(self.slots)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row and its clock."""
        return self.table.dim * self.table.dtype.itemsize + CLOCK_WIDTH * 8

    def keep_past(self, num_events: int) -> None:
        """Keep the rows overwritten by the last `num_events` events; 0 keeps none.

        At most two for each event. The events of a write count together: once the first of them is
        further back, the rows it overwrote read as the initial state. To read nodes as they were
        `n` events ago, keep `n` plus the size of the largest write.

        Rows already kept stay, as far as `num_events` reaches.

        Raises:
            ValueError: If `num_events` is below 0.
        """
        if num_events < 0:
            raise ValueError(f"events to keep must be at least 0, got {num_events}")
        if num_events == 0:
            self.history = None
        elif self.history is None:
            last = int(self.clock[:, POSITION].max()) if len(self.clock) else 0
            self.history = VersionHistory(num_events, self.table.dim, CLOCK_WIDTH, last)
            self.history.to(self.clock.device).resize(len(self.clock))
        elif self.history.num_events != num_events:
            self.history = self.history.with_events(num_events, self._rows_of)

    def resize(self, num_nodes: int) -> None:
        """Grow to at least `num_nodes` nodes. Amortized.

        Raises:
            MemoryError: If the table has no room for them.
        """
        self._make_room(num_nodes)
        if num_nodes > self._num_nodes:
            self._num_nodes = num_nodes
            if not self.clock.is_cpu:
                self.seen.clamp_(min=num_nodes)

    def _make_room(self, num: int) -> None:
        table, slots = self.table, self.slots
        if slots is not None:
            slots.cover(num)
            num = slots.size
        if num > len(table):
            at = self.clock.device if isinstance(table, TensorTable) else None
            for page in self._pages(num - len(table)):
                shape = page.stop - page.start, table.dim
                table.append(torch.zeros(shape, dtype=table.dtype, device=at))
            if table.placement == "disk":
                raise MemoryError(
                    f"the memory of {num} nodes has outgrown its table, which spilled to "
                    "disk, where rows are immutable; give it a larger budget"
                )
        if num > len(self.clock):
            self.clock = grow_to(self.clock, num)
            if self.history is not None:
                self.history.resize(len(self.clock))

    def _pages(self, size: int) -> Iterator[slice]:
        """Yield `size` rows as slices to be copied one after the other."""
        step = max(_PAGE_BYTES // (4 * self.table.dim), 1)
        return (slice(start, min(start + step, size)) for start in range(0, size, step))

    @property
    def capturable(self) -> bool:
        """Whether CUDA graphs may capture reads and writes: if the rows are a buffer."""
        return isinstance(self.table, TensorTable)

    @contextmanager
    def covering(self, num_nodes: int) -> Iterator[None]:
        """Context manager for access within nodes below `num_nodes` only, after growing to them.

        Otherwise a call on a device synchronizes to read its largest node. On the CPU a node that
        is only read does not count as a node yet.
        """
        self._make_room(num_nodes)
        before, self._covered = self._covered, num_nodes
        try:
            yield
        finally:
            self._covered = before

    @contextmanager
    def unless(self, is_lost: Tensor) -> Iterator[None]:
        """Make `write` a no-op if `is_lost`; does not synchronize.

        Args:
            is_lost: bool `[]` on the memory's device.
        """
        before, self._is_lost = self._is_lost, is_lost
        try:
            yield
        finally:
            self._is_lost = before

    def forget(self, first: int, tick: int) -> None:
        """Reset the nodes whose last event is before a horizon. See `PartedState`.

        Synchronizes with a device.
        """
        self._forgets = True
        if self.clock.is_cpu and self.slots is None:
            empty = len(self.table)
            self._make_room(empty + 1)
            node = torch.where(self.clock[: empty + 1, HAS_MAIL] != 0, torch.arange(empty + 1), -1)
            self.slots = RowSlots(node, empty)
            self.slots.cover(self._num_nodes)
        # rows that no replayed event can ask for an earlier version of
        is_settled = (self.clock[:, HAS_MAIL] != 0) & (self.clock[:, POSITION] <= first)
        settled = is_settled.nonzero().squeeze(1)
        dead = settled[self.clock[settled, MAIL_T] < tick]
        if self.history is not None:
            self.history.forget(first, settled, dead)
        self._freezer.keep(dead)
        self._zero(dead)
        if self.slots is not None:
            self.slots.free(dead)

    def _zero(self, rows: Tensor) -> None:
        for page in self._pages(len(rows)):
            ids = rows[page]
            self.table.scatter_(ids, torch.zeros(len(ids), self.table.dim))
        self.clock.index_fill_(0, rows, 0)

    def _rows_of(self, nodes: Tensor) -> Tensor:
        return nodes if self.slots is None else self.slots.of(nodes)

    def reset(self) -> None:
        """Reset all rows and the history; the nodes stay."""
        self._freezer.keep()
        self._zero(written := (self.clock[:, HAS_MAIL] != 0).nonzero().squeeze(1))
        if self.slots is not None:
            self.slots.free(written)
        if self.history is not None:
            self.history.reset()

    def read(self, nodes: Tensor, position: Tensor, since: Tensor | None = None) -> MemoryRows:
        """Return each node's latest version at or before the requested position.

        Args:
            nodes: int64 `[U]`; unwritten or unknown ones have the initial state.
            position: Log positions, int64 `[U]`. If all are current, the history is not read.
            since: Tick at which the horizon begins, int64 `[1]`: nodes without a later event, or
                one of that tick, have the initial state. None: no horizon.

        Raises:
            ValueError: If an older version is requested and no history is kept; a device, which
                would have to synchronize, returns the initial state.
        """
        return self._read(nodes, position).within(since)

    def _read(self, nodes: Tensor, position: Tensor) -> MemoryRows:
        self._cover(nodes)
        if not nodes.is_cpu:
            from tgflow.cuda.memory import read_versions  # here: the CPU needs no kernels

            nodes, position = nodes.contiguous(), position.contiguous()
            of_table = None if isinstance(self.table, TensorTable) else self.table.gather(nodes)
            kernels = device_of(nodes.device).kernels
            found = read_versions(kernels, self._kernel_buffers(), nodes, position, of_table)
            return MemoryRows(*found, self.dim)
        at = self._rows_of(nodes)
        rows, clock = self.table.gather(at), self.clock.index_select(0, at)
        is_stale = clock[:, POSITION] > position
        if bool(is_stale.any()):
            stale = is_stale.nonzero().squeeze(1)
            if self.history is None:
                row = int(stale[0])
                raise ValueError(
                    f"node {int(nodes[row])} is requested as of position {int(position[row])}, but "
                    f"was written at {int(clock[row, POSITION])} and no history is kept; ask "
                    "about a later time, or call keep_past(num_events) first, with the number of "
                    "events to look back"
                )
            old_rows, old_clock = self.history.read(
                at.index_select(0, stale), position.index_select(0, stale)
            )
            rows.index_copy_(0, stale, old_rows)
            clock.index_copy_(0, stale, old_clock)
            return MemoryRows(rows, clock, self.dim)
        return MemoryRows(rows, clock, self.dim, nodes)

    def _kernel_buffers(self) -> MemoryBuffers:
        from tgflow.cuda.memory import MemoryBuffers

        rows = self.table.rows if isinstance(self.table, TensorTable) else None
        return MemoryBuffers(self.clock, self.seen, rows, self.history)

    def write(
        self,
        nodes: Tensor,
        memory: Tensor,
        last_update: Tensor,
        mail: Tensor,
        mail_t: Tensor,
        position: int | Tensor,
        is_last: Tensor | None = None,
        row: Tensor | None = None,
    ) -> None:
        """Write a new version of the nodes' rows, with mail, valid from `position` on.

        Args:
            nodes: Distinct nodes, int64 `[R]`.
            memory: float32 `[R, dim]`, without gradients.
            last_update: Ticks, int64 `[R]`.
            mail: float32 `[R, mail_dim]`, without gradients.
            mail_t: Ticks, int64 `[R]`.
            position: The log position of the first event that may read it, at least that of earlier
                writes; or int64 `[1]`, without synchronization.
            is_last: On a device nodes may repeat if all rows of a node are equal: bool `[R]`, marks
                one of each. None: no repeats.
            row: On a device, the row of `memory`, `last_update` and `mail` of each node, int64
                `[R]`; None: in order.
        """
        self._cover(nodes, writes=True)
        if not nodes.is_cpu:
            from tgflow.cuda.memory import Versions

            where = position if isinstance(position, Tensor) else nodes.new_full((1,), position)
            versions = Versions(memory, last_update, mail, mail_t, where, row)
            self._write_on_device(nodes.contiguous(), versions, is_last)
            return
        rows = torch.cat([memory, mail], dim=1)
        flags = torch.ones_like(mail_t)
        clock = torch.stack([last_update, mail_t, flags, flags * position], dim=1)
        self._replace(nodes, rows, clock, int(position))

    def _replace(self, nodes: Tensor, rows: Tensor, clock: Tensor, position: int) -> None:
        at = nodes
        if self.slots is not None:
            at = self.slots.give(nodes)
            self._make_room(self._num_nodes)
        if self.history is not None:
            # rows whose current version can still be read later
            version = self.clock[:, POSITION].index_select(0, at)
            is_kept = (version > 0) & (version < position)
            old = at[is_kept]
            was = self.table.gather(old), self.clock.index_select(0, old)
            self.history.append(nodes[is_kept], old, *was, position)
        self._freezer.keep(at)
        self.table.scatter_(at, rows)
        self.clock.index_copy_(0, at, clock)

    def rows_of(self, nodes: Tensor) -> dict[str, Tensor]:
        """Return the current rows of distinct nodes on the CPU, int64 `[R]`, for `put_rows`.

        Synchronizes with a device.
        """
        self._cover(nodes)
        there = self._rows_of(nodes.to(self.clock.device))
        rows, clock = self.table.gather(there), self.clock.index_select(0, there)
        return {"nodes": nodes, "rows": rows.cpu(), "clock": clock.cpu()}

    def put_rows(self, changes: Mapping[str, Tensor]) -> None:
        """Write the rows that `rows_of` another memory returned after a write; on the CPU.

        Rows that have not changed since are skipped.
        """
        nodes, rows, clock = changes["nodes"], changes["rows"], changes["clock"]
        self._cover(nodes, writes=True)
        version = self.clock[:, POSITION].index_select(0, self._rows_of(nodes))
        new = (clock[:, POSITION] > version).nonzero().squeeze(1)
        if len(new):
            nodes, rows, clock = (x.index_select(0, new) for x in (nodes, rows, clock))
            self._replace(nodes, rows, clock, int(clock[:, POSITION].max()))

    def _write_on_device(self, nodes: Tensor, versions: Versions, is_last: Tensor | None) -> None:
        from tgflow.cuda.memory import write_versions

        rows = None
        if not isinstance(self.table, TensorTable):
            if is_last is not None:
                distinct = is_last.nonzero().squeeze(1)  # tables need distinct rows; syncs
                nodes, versions = nodes.index_select(0, distinct), versions.select(distinct)
                is_last = None
            rows = self.table.gather(nodes)
        write_versions(
            device_of(nodes.device).kernels, self._kernel_buffers(), nodes, versions,
            rows=rows, is_last=is_last, is_lost=self._is_lost,
        )  # fmt: skip
        if rows is not None:
            self.table.scatter_(nodes, rows)

    def state_dict(  # type: ignore[override]
        self, *, destination: dict[str, Any] | None = None, **_: Any
    ) -> dict[str, Tensor]:
        """Return copies of the whole state as tensors, for `load_state_dict`.

        The rows of a table are a tensor in a temporary file, so that a large memory is never in
        host memory twice. It adds nothing to the `state_dict` of a model around it, which has the
        parameters and calls this with `destination`.
        """
        return self.frozen()() if destination is None else destination

    def frozen(self) -> Callable[[], dict[str, Tensor]]:
        """Return a function that returns `state_dict` as of now, once. See `PartedState`.

        On the CPU little is copied until then: rows that change meanwhile are copied before.
        """
        take = self._frozen()

        def sorted_() -> dict[str, Tensor]:
            state = take()
            if NODES in state:
                order = _by_node(state[NODES])
                state |= {name: state[name][order] for name in (NODES, *_OF_ROWS)}
            return state

        return sorted_

    def _frozen(self) -> Callable[[], dict[str, Tensor]]:
        """Do the same as `frozen`; if nodes are saved, rows are in any order, free ones too."""
        size, on_host = self.num_nodes, self.clock.is_cpu
        node = None
        if self.slots is not None:
            size, node = self.slots.size, self.slots.node[: self.slots.size].clone()
        past = dict if self.history is None else self.history.frozen()
        rows = self._freezer.freeze(size, self._columns)

        def copy() -> dict[str, Tensor]:
            out = self._room(size), self.clock.new_empty(size, CLOCK_WIDTH)
            rows.copy_to(out, self._pages(size))
            found = dict(zip(_OF_ROWS, out, strict=True))
            if node is not None:
                found[NODES] = node
            elif self._forgets:  # on a device
                ids = torch.arange(size, device=out[1].device)
                found[NODES] = torch.where(out[1][:, HAS_MAIL] != 0, ids, -1)
            return found

        state = {} if on_host else copy()

        def take() -> dict[str, Tensor]:
            return (copy() if on_host else state) | {HISTORY + k: x for k, x in past().items()}

        return take

    def _columns(self, at: slice | Tensor) -> Sequence[Tensor]:
        if isinstance(at, slice):
            return self.table.read(at.start, at.stop), self.clock[at]
        return self.table.gather(at), self.clock.index_select(0, at)

    def parted(self, num_parts: int = PARTS) -> Callable[[int], dict[str, Tensor]]:
        """Return the state as of now, part by part of the nodes. See `PartedState`."""
        frozen = cache(self._frozen())

        @cache
        def rows_of_parts() -> Sequence[slice | Tensor]:
            state = frozen()
            if NODES in state:
                order = _by_node(state[NODES])
                return _split(order, state[NODES][order] % num_parts, num_parts)
            # a part ends with its last node that was written
            written = state["clock"][:, HAS_MAIL].nonzero().squeeze(1)
            ends = written.new_zeros(num_parts)
            ends.scatter_reduce_(0, written % num_parts, written // num_parts + 1, "amax")
            return [
                slice(part, part + num_parts * size, num_parts)
                for part, size in enumerate(ends.tolist())
            ]

        @cache
        def slots_of_parts() -> Sequence[Tensor]:
            of = frozen()[HISTORY + "origin"][:, NODE] % num_parts
            return _split(torch.arange(len(of), device=of.device), of, num_parts)

        def take(part: int) -> dict[str, Tensor]:
            state = frozen()
            own = rows_of_parts()[part]
            found = {name: state[name][own] for name in (NODES, *_OF_ROWS) if name in state}
            if HISTORY + "events" not in state:
                return found
            slot = slots_of_parts()[part]
            found |= {HISTORY + name: state[HISTORY + name][slot] for name in COLUMNS}
            return found | {HISTORY + "events": state[HISTORY + "events"]}

        return take

    def load_parted(self, read: Callable[[int], Mapping[str, Tensor]]) -> None:
        """Load the parts that `parted` returned, of all nodes. See `PartedState`.

        Raises:
            KeyError: If a tensor is missing. Nothing is changed then.
            ValueError: As `load_state_dict`, or if the parts do not fit each other.
        """
        self.load_state_dict(merge_parts([read(part) for part in range(PARTS)]))

    def _room(self, size: int) -> Tensor:
        """Return a tensor for a copy of the first rows: for those of another table, of a file."""
        table = self.table
        if isinstance(table, TensorTable) or not size:
            on = table.rows.device if isinstance(table, TensorTable) else None
            return torch.empty(size, table.dim, dtype=table.dtype, device=on)
        numel = size * table.dim
        with tempfile.NamedTemporaryFile(prefix="tgflow-", suffix=".rows") as file:
            if hasattr(os, "posix_fallocate"):  # a full disk is an error, not a signal
                os.posix_fallocate(file.fileno(), 0, numel * table.dtype.itemsize)
            mapped = torch.from_file(file.name, shared=True, size=numel, dtype=table.dtype)
        return mapped.view(size, table.dim)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:  # type: ignore[override]
        """Load the state, also on another device; `keep_past` is unchanged.

        Raises:
            KeyError: If a tensor is missing. Nothing is changed then.
            ValueError: If the state does not fit these widths. Nothing is changed then.
        """
        history = _checked_history(state, self.table.dim, self.table.dtype)
        rows, clock = state["rows"], state["clock"]
        num_nodes, num_events = num_nodes_in(state), int(history["events"][1]) if history else 0
        self._freezer.keep()
        self.slots, self._forgets = None, NODES in state
        at = torch.arange(len(rows))
        if self._forgets and self.clock.is_cpu:
            self._make_room(len(rows) + 1)
            self.reset()
            self.slots = RowSlots(torch.cat([state[NODES].cpu(), torch.tensor([-1])]), len(rows))
        else:
            self._make_room(num_nodes)
            self.reset()
            at = state.get(NODES, at).cpu()
        self.keep_past(num_events)
        self._set_num_nodes(num_nodes)
        for page in self._pages(len(rows)):
            self.table.scatter_(at[page], rows[page].cpu())
        on = self.clock.device
        self.clock.index_copy_(0, at.to(on), clock.to(on))
        if self.history is not None:
            self.history.load_state_dict(history, self._rows_of)

    def _cover(self, nodes: Tensor, *, writes: bool = False) -> None:
        if len(nodes) == 0:
            return
        if self._covered is None or (writes and nodes.is_cpu):
            self.resize(int(nodes.max()) + 1)
