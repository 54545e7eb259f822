"""Launches the kernels that deduplicate rows (csrc/cuda/frontier.cu)."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from tgflow.cuda.arguments import Arguments
from tgflow.cuda.device import Device
from tgflow.cuda.structs import words

_THREADS = 256
_MOST_ITEMS = 2**30
"""Limit from int32 items: the hash table has up to four times as many slots."""


class _Items(ctypes.Structure):
    """Rows to deduplicate (cuda/frontier.cu)."""

    _fields_ = words("node t position num_used num_targets slot_node slot_t num_slots k by_time")


class _Claims(ctypes.Structure):
    """First items among equal ones (cuda/frontier.cu)."""

    _fields_ = words("first mask place number")


class _Rows(ctypes.Structure):
    """Output of distinct rows (cuda/frontier.cu)."""

    _fields_ = (
        *words("node t position base num_used row mask dt"),
        ("seconds_per_tick", ctypes.c_double),
    )


class QueryRows(NamedTuple):
    """Queries on the GPU. Distinct ones are in order of first appearance, followed by padding."""

    nodes: Tensor
    """int64 `[N]`, `NO_NODE` beyond the rows in use."""
    t: Tensor
    """int64 `[N]`: ticks, 0 beyond them."""
    position: Tensor | None = None
    """int64 `[N]`: log positions, 0 beyond them; or None."""
    num_used: Tensor | None = None
    """int64 `[]`: rows in use; None: all."""


def unique_queries(gpu: Device, queries: QueryRows) -> tuple[QueryRows, Tensor]:
    """Return the distinct queries, and each query's row, int64 `[N]`."""
    size = len(queries.nodes)
    items = _targets(gpu, queries, by_time=True, by_position=True)
    rows, row = _made_distinct(gpu, items, size, _with_position(queries, True))
    return rows, row


def expand_frontier(
    gpu: Device,
    targets: QueryRows,
    nodes: Tensor,
    t: Tensor,
    seconds_per_tick: float,
    *,
    by_time: bool,
    by_position: bool,
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], QueryRows]:
    """Return the columns of a block, and the frontier below.

    Takes queries with their sampled neighbors' nodes and event times, `[N, k]`. Rows of the
    frontier that differ only in time stay separate where `by_time`, otherwise its times are zeros;
    likewise positions, which it then lacks. Returns `target` `[N]`, `neighbor`, `mask` and `dt`
    `[N, k]` of the block; and `N * (k + 1)` rows.
    """
    num, k = len(targets.nodes), nodes.shape[1]
    items = _targets(gpu, targets, by_time=by_time, by_position=by_position)
    given = Arguments(gpu.device)
    items.slot_node = given.address("nodes", nodes, torch.int64, num, k)
    items.slot_t = given.address("t", t, torch.int64, num, k)
    items.num_slots, items.k = num * k, k
    mask = torch.empty(num, k, dtype=torch.bool, device=gpu.device)
    dt = torch.empty(num, k, dtype=torch.float32, device=gpu.device)
    links = _Rows(mask=mask.data_ptr(), dt=dt.data_ptr(), seconds_per_tick=seconds_per_tick)
    with_position = _with_position(targets, by_position)
    rows, row = _made_distinct(gpu, items, num * (k + 1), with_position, links)
    return (row[:num], row[num:].view(num, k), mask, dt), rows


def unique_events(gpu: Device, eids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return -1 and the distinct events, each event's row, and the number of rows in use.

    Rows are int64 `[N + 1]`, -1 beyond those in use; -1 stands for no event, whose row is 0.
    """
    size = len(eids)
    address = Arguments(gpu.device).address("eids", eids, torch.int64, size)
    items = _Items(slot_node=address, num_slots=size, k=1)
    rows, row = _made_distinct(gpu, items, size, False, _Rows(base=1))
    assert rows.num_used is not None
    return rows.nodes, row, rows.num_used


def _with_position(queries: QueryRows, by_position: bool) -> bool:
    return by_position and queries.position is not None


def _targets(gpu: Device, queries: QueryRows, *, by_time: bool, by_position: bool) -> _Items:
    size, given = len(queries.nodes), Arguments(gpu.device)
    position, num_used = queries.position if by_position else None, queries.num_used
    return _Items(
        node=given.address("nodes", queries.nodes, torch.int64, size),
        t=given.address("t", queries.t, torch.int64, size),
        position=0 if position is None else given.address("position", position, torch.int64, size),
        num_used=0 if num_used is None else given.address("num_used", num_used, torch.int64),
        num_targets=size,
        k=1,
        by_time=int(by_time),
    )


def _made_distinct(
    gpu: Device, items: _Items, size: int, with_position: bool, to: _Rows | None = None
) -> tuple[QueryRows, Tensor]:
    """Return the distinct rows of `size` items, and each item's row; `to` has other outputs."""
    if size > _MOST_ITEMS:
        raise ValueError(f"a frontier on a GPU has at most {_MOST_ITEMS} rows, got {size}")
    to = _Rows() if to is None else to
    if size == 0:
        return _none(gpu, to.base, with_position)
    places = 1 << (2 * size - 1).bit_length()
    first = torch.full((places,), -1, dtype=torch.int32, device=gpu.device)
    place, number = torch.empty(2, size, dtype=torch.int32, device=gpu.device).unbind(0)
    length = to.base + size
    columns = torch.empty(3 if with_position else 2, length, dtype=torch.int64, device=gpu.device)
    row = torch.empty(size, dtype=torch.int64, device=gpu.device)
    num_used = torch.empty((), dtype=torch.int64, device=gpu.device)
    nodes, t, *position = columns.unbind(0)
    to.node, to.t = nodes.data_ptr(), t.data_ptr()
    to.position = position[0].data_ptr() if with_position else 0
    to.num_used, to.row = num_used.data_ptr(), row.data_ptr()
    claims = _Claims(first.data_ptr(), places - 1, place.data_ptr(), number.data_ptr())
    blocks = -(-size // _THREADS)
    gpu.kernels.launch("frontier_claim", blocks, _THREADS, items, claims)
    gpu.kernels.launch("frontier_flag", blocks, _THREADS, items, claims)
    torch.cumsum(number, 0, dtype=torch.int32, out=number)
    gpu.kernels.launch("frontier_write", blocks, _THREADS, items, claims, to)
    return QueryRows(nodes, t, position[0] if position else None, num_used), row


def _none(gpu: Device, base: int, with_position: bool) -> tuple[QueryRows, Tensor]:
    """Return the rows for no items: those that stand for missing ones."""
    nodes = torch.full((base,), -1, dtype=torch.int64, device=gpu.device)
    zeros = torch.zeros_like(nodes)
    num_used = torch.full((), base, dtype=torch.int64, device=gpu.device)
    rows = QueryRows(nodes, zeros, zeros.clone() if with_position else None, num_used)
    return rows, zeros.new_empty(0)
