"""Launches the node memory kernels (csrc/cuda/memory.cu)."""

from __future__ import annotations

import ctypes
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tgflow.cuda.arguments import Arguments
from tgflow.cuda.launch import Kernels
from tgflow.cuda.row_lists import lanes_width
from tgflow.cuda.structs import words

_WARPS = 8
_MOST_BLOCKS = 1 << 20
_MOST_THREADS = 1024
_CLOCK_WIDTH = 4
_LINK_WIDTH = 3
_ORIGIN_WIDTH = 2


class MemoryBuffers(NamedTuple):
    """The tensors of a node memory."""

    clock: Tensor
    """int64 `[N, 4]`; the last column is the log position from which a row is valid."""
    seen: Tensor
    """int64 `[]`: set to the largest node plus one."""
    rows: Tensor | None
    """float32, at least `[N, D]`, by node; None: stored in a table elsewhere."""
    ring: VersionsKept | None
    """Overwritten rows; None: they are not kept."""


class VersionsKept(Protocol):
    """What kernels need of a `tgflow.nn.history.VersionHistory`."""

    rows: Tensor
    clock: Tensor
    link: Tensor
    origin: Tensor
    head: Tensor
    """int64, at least `[N]`: the number of each node's latest version, or -1."""
    counts: Tensor
    capacity: int
    num_events: int


class Versions(NamedTuple):
    """New rows of nodes, as `tgflow.nn.NodeMemory.write` takes them; matrices may be strided."""

    memory: Tensor
    last_update: Tensor
    mail: Tensor
    mail_t: Tensor
    position: Tensor
    row: Tensor | None = None
    """int64 `[R]`: row of `memory`, `last_update` and `mail` of each version; None: in order."""

    def select(self, rows: Tensor) -> Versions:
        """Return the given versions (int64 `[S]`)."""
        row = rows if self.row is None else self.row.index_select(0, rows)
        return self._replace(mail_t=self.mail_t.index_select(0, rows), row=row)


class _Columns(ctypes.Structure):
    """The rows of a node memory (cuda/memory.cu)."""

    _fields_ = words("row is_by_node width clock num_nodes seen")


class _Ring(ctypes.Structure):
    """Overwritten versions (cuda/memory.cu)."""

    _fields_ = words("row clock link origin head counts capacity num_events")


class _Queries(ctypes.Structure):
    """Queries of a read (cuda/memory.cu)."""

    _fields_ = words("node position size row clock")


class _Updates(ctypes.Structure):
    """Rows of a write (cuda/memory.cu)."""

    _fields_ = words(
        "node from_ size memory memory_stride dim mail mail_stride "
        "last_update mail_t position is_last is_lost slot link"
    )


def read_versions(
    kernels: Kernels,
    buffers: MemoryBuffers,
    nodes: Tensor,
    position: Tensor,
    rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return each node's latest version at or before a position, zeros if none is kept.

    The row of a node outside the memory is NaN. `rows`, overwritten, are the current ones of a
    memory that stores them elsewhere. Returns rows, float32 `[Q, D]`, and clocks, int64 `[Q, 4]`.
    """
    size = len(nodes)
    given = Arguments.beside("nodes", nodes)
    columns, ring = _columns(given, buffers, rows, size), _ring(given, buffers)
    out = nodes.new_empty(size, columns.width, dtype=torch.float32) if rows is None else rows
    clock = nodes.new_empty(size, _CLOCK_WIDTH)
    queries = _Queries(
        given.address("nodes", nodes, torch.int64, size),
        given.address("position", position, torch.int64, size),
        size,
        out.data_ptr(),
        clock.data_ptr(),
    )
    if size > 0:
        width = lanes_width([columns.width], [columns.row, ring.row, queries.row])
        kernels.launch(f"memory_read_by_{width}", *_grid(size), columns, ring, queries)
    return out, clock


def write_versions(
    kernels: Kernels,
    buffers: MemoryBuffers,
    nodes: Tensor,
    versions: Versions,
    *,
    rows: Tensor | None = None,
    is_last: Tensor | None = None,
    is_lost: Tensor | None = None,
) -> None:
    """Write the nodes' current versions, and keep the overwritten ones, in stream order.

    Kept versions are numbered in the order of `nodes`, the last ones if there are more than the
    ring holds; versions that can never be read again are not kept. A ring also counts writes
    without nodes. Nodes are distinct among those that count, as `is_last` says; one outside the
    memory is skipped. Where `is_lost`, nothing is written. `rows`: as in `read_versions`.
    """
    size = len(nodes)
    given = Arguments.beside("nodes", nodes)
    columns, ring = _columns(given, buffers, rows, size), _ring(given, buffers)
    updates = _updates(given, nodes, versions, columns.width)
    if is_last is not None:
        updates.is_last = given.address("is_last", is_last, torch.bool, size)
    if is_lost is not None:
        updates.is_lost = given.address("is_lost", is_lost, torch.bool)
    if ring.capacity > 0:
        scratch = nodes.new_empty(size * (1 + _LINK_WIDTH))
        updates.slot = scratch.data_ptr()
        updates.link = scratch.data_ptr() + 8 * size
        threads = min(max(-(-size // 32), 1) * 32, _MOST_THREADS)
        kernels.launch("memory_archive", 1, threads, columns, ring, updates)
    if size == 0:
        return
    width = lanes_width(
        [columns.width, updates.dim, updates.memory_stride, updates.mail_stride],
        [columns.row, ring.row, updates.memory, updates.mail],
    )
    kernels.launch(f"memory_write_by_{width}", *_grid(size), columns, ring, updates)


def _columns(given: Arguments, buffers: MemoryBuffers, rows: Tensor | None, size: int) -> _Columns:
    clock, table = buffers.clock, buffers.rows
    if (table is None) == (rows is None):
        raise ValueError("rows must be given if, and only if, those of the memory are elsewhere")
    if table is None:
        assert rows is not None
        address, width = given.address("rows", rows, torch.float32, size, "D"), rows.shape[1]
        num_nodes = len(clock)
    else:
        address, width = given.address("rows", table, torch.float32, "N", "D"), table.shape[1]
        num_nodes = min(len(clock), len(table))
    at_clock = given.address("clock", clock, torch.int64, "N", _CLOCK_WIDTH)
    at_seen = given.address("seen", buffers.seen, torch.int64)
    return _Columns(address, table is not None, width, at_clock, num_nodes, at_seen)


def _ring(given: Arguments, buffers: MemoryBuffers) -> _Ring:
    if (ring := buffers.ring) is None:
        return _Ring()
    width = (buffers.rows if buffers.rows is not None else ring.rows).shape[1]
    made = _Ring(
        given.address("the ring's rows", ring.rows, torch.float32, "S", width),
        given.address("the ring's clock", ring.clock, torch.int64, "S", _CLOCK_WIDTH),
        given.address("the ring's link", ring.link, torch.int64, "S", _LINK_WIDTH),
        given.address("the ring's origin", ring.origin, torch.int64, "S", _ORIGIN_WIDTH),
        given.address("head", ring.head, torch.int64, "N"),
        given.address("counts", ring.counts, torch.int64, 2),
        ring.capacity,
        ring.num_events,
    )
    room = [len(column) for column in (ring.rows, ring.clock, ring.link, ring.origin)]
    if min(room) < ring.capacity or len(ring.head) < len(buffers.clock):
        raise ValueError(
            f"a ring of {ring.capacity} versions of {len(buffers.clock)} nodes must have as many "
            "rows, clocks, links, origins and heads, got "
            f"{', '.join(map(str, room))} and {len(ring.head)}"
        )
    return made


def _updates(given: Arguments, nodes: Tensor, versions: Versions, width: int) -> _Updates:
    size, (memory, last_update, mail, mail_t, position, row) = len(nodes), versions
    held = size if row is None else len(memory)
    at_memory, memory_stride = given.rows("memory", memory, torch.float32, held, "dim")
    dim = memory.shape[1]
    at_mail, mail_stride = given.rows("mail", mail, torch.float32, held, width - dim)
    return _Updates(
        node=given.address("nodes", nodes, torch.int64, size),
        from_=0 if row is None else given.address("row", row, torch.int64, size),
        size=size,
        memory=at_memory,
        memory_stride=memory_stride,
        dim=dim,
        mail=at_mail,
        mail_stride=mail_stride,
        last_update=given.address("last_update", last_update, torch.int64, held),
        mail_t=given.address("mail_t", mail_t, torch.int64, size),
        position=given.address("position", position, torch.int64, 1),
    )


def _grid(size: int) -> tuple[int, int]:
    return min(-(-size // _WARPS), _MOST_BLOCKS), 32 * _WARPS
