"""Slow, obvious reference of batches: loops over events, dicts for distinctness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tgflow.graph.batch import Batch, Block, HostEvents, ReusedRows, ReuseRecord
from tgflow.graph.events import EventBatch

Query = tuple[int, int, int]
"""(node, time in ticks, log position at which its event's batch started)."""


@dataclass(frozen=True)
class PlanSpec:
    """The part of a plan that decides neighborhoods, for an undirected graph and `recent`."""

    batch_size: int
    fanouts: Sequence[int]
    visibility: str
    with_memory: bool
    start: int = 0
    seconds_per_tick: float = 1.0
    with_nodes: bool = True


class Distinct:
    """Values in order of first appearance."""

    def __init__(self) -> None:
        self.rows: dict[Any, int] = {}

    def add(self, value: Any) -> int:
        """Return the row of `value`."""
        return self.rows.setdefault(value, len(self.rows))


def recent(
    events: EventBatch, node: int, t: int, k: int, before: int
) -> list[tuple[int, int, int]]:
    """Return the latest `k` of `(neighbor, t, eid)` with `t_nbr < t` and `eid < before`."""
    found = []
    for eid, (src, dst, when) in enumerate(_rows(events)):
        if when < t and eid < before and node in (src, dst):
            found.append((dst if node == src else src, when, eid))
    return found[::-1][:k]


def batch_starts(spec: PlanSpec, eids: Sequence[int]) -> list[int]:
    """Return the log position at which the batch of each event started."""
    size = spec.batch_size
    return [max(0, spec.start + (eid - spec.start) // size * size) for eid in eids]


def expected_rows(events: EventBatch, batch: Batch, spec: PlanSpec) -> dict[str, Any]:
    """Return the expected contents of `batch` for its events and negatives, as nested lists."""
    frontier = Distinct()
    starts = batch_starts(spec, batch.eid.tolist())
    if not spec.with_nodes:
        none = ("src_row", "dst_row", "negative_dst_row", "negative_src_row", "blocks", "nodes")
        return {**{name: [] for name in none}, "position": starts}
    if spec.visibility == "event" and not spec.with_memory:
        starts = [batch.index * spec.batch_size + spec.start] * len(batch)
    times = batch.t.tolist() if spec.fanouts else [0] * len(batch)

    def rows_of(nodes: list[list[int]]) -> list[list[int]]:
        return [
            [frontier.add((node, t, start)) for node in row]
            for row, t, start in zip(nodes, times, starts, strict=True)
        ]

    expected: dict[str, Any] = {
        "src_row": [row for (row,) in rows_of(batch.src.unsqueeze(1).tolist())],
        "dst_row": [row for (row,) in rows_of(batch.dst.unsqueeze(1).tolist())],
        "negative_dst_row": rows_of(batch.negative_dst.tolist()),
        "negative_src_row": rows_of(batch.negative_src.tolist()),
        "blocks": [],
    }
    queries = list(frontier.rows)
    edges = Distinct() if events.x is not None else None
    if edges is not None:
        edges.add(-1)
    num_new = batch.num_new if batch.slice is None else batch.slice.num_new
    end = batch.index * spec.batch_size + spec.start + num_new
    for hop, k in enumerate(spec.fanouts):
        lowest = hop + 1 == len(spec.fanouts)
        block, queries = _expected_block(
            events, queries, k=k, end=end, edges=edges, spec=spec, lowest=lowest
        )
        expected["blocks"].append(block)
    expected["nodes"] = [query[0] for query in queries]
    begin = batch.index * spec.batch_size + spec.start
    expected["position"] = [query[2] if spec.with_memory else begin for query in queries]
    return expected


def _expected_block(
    events: EventBatch,
    queries: list[Any],
    *,
    k: int,
    end: int,
    edges: Distinct | None,
    spec: PlanSpec,
    lowest: bool,
) -> tuple[dict[str, Any], list[Any]]:
    below = Distinct()

    def row_of(node: int, t: int, start: int) -> int:
        return below.add((node, 0 if lowest else t, start if spec.with_memory or not lowest else 0))

    block: dict[str, Any] = {"target": [row_of(*query) for query in queries]}
    for name in ("neighbor", "mask", "dt", "eid", "edge_row"):
        block[name] = []
    if edges is None:  # and no features to find rows in
        block["edge_row"] = None
    for node, t, start in queries:
        found = recent(events, node, t, k, start if spec.visibility == "batch" else end)
        missing = k - len(found)
        block["neighbor"].append([row_of(n, when, start) for n, when, _ in found] + [0] * missing)
        block["mask"].append([True] * len(found) + [False] * missing)
        dt = [_float32((t - when) * spec.seconds_per_tick) for _, when, _ in found]
        block["dt"].append(dt + [0.0] * missing)
        block["eid"].append([eid for _, _, eid in found] + [-1] * missing)
        if edges is not None:
            rows = [edges.add(eid) for _, _, eid in found]
            block["edge_row"].append(rows + [0] * missing)
    return block, list(below.rows)


def assert_batch_rows(batch: Batch, expected: dict[str, Any]) -> None:
    """Fail unless `batch` equals `expected_rows`."""
    for name, value in expected.items():
        if name == "blocks":
            assert len(batch.blocks) == len(value)
            for block, fields in zip(batch.blocks, value, strict=True):
                for field, rows in fields.items():
                    column = getattr(block, field)
                    assert (column if column is None else column.tolist()) == rows, field
        else:
            assert getattr(batch, name).tolist() == value, name


def assert_same_batch(a: Batch, b: Batch) -> None:
    """Fail unless every field of `a` and `b` is equal, bit for bit."""
    for name in Batch.__dataclass_fields__:
        if name not in ("blocks", "host", "slice", "lent"):
            _assert_same(name, getattr(a, name), getattr(b, name))
    assert_same_events(a.host, b.host)
    assert (a.slice is None) == (b.slice is None)
    if a.slice is not None and b.slice is not None:
        for name in ("number", "num_slices", "num_new", "num_fallbacks"):
            _assert_same(f"slice.{name}", getattr(a.slice, name), getattr(b.slice, name))
        assert_same_events(a.slice.host, b.slice.host)
    assert len(a.blocks) == len(b.blocks)
    for block_a, block_b in zip(a.blocks, b.blocks, strict=True):
        for name in Block.__dataclass_fields__:
            if name != "reused":
                _assert_same(name, getattr(block_a, name), getattr(block_b, name))
        assert_same_reuse(block_a.reused, block_b.reused)


def assert_same_reuse(a: ReusedRows | None, b: ReusedRows | None) -> None:
    """Fail unless the same rows are taken from the same places, and stored in the same."""
    assert (a is None) == (b is None)
    if a is None or b is None:
        return
    for name in ("slot", "stored", "weight"):
        _assert_same(name, getattr(a, name), getattr(b, name))
    for name in ReuseRecord.__dataclass_fields__:
        _assert_same(f"record.{name}", getattr(a.record, name), getattr(b.record, name))


def assert_same_events(a: HostEvents, b: HostEvents) -> None:
    """Fail unless every field of `a` and `b` is equal."""
    for name in HostEvents.__dataclass_fields__:
        _assert_same(f"host.{name}", getattr(a, name), getattr(b, name))


def _assert_same(name: str, a: Any, b: Any) -> None:
    same = torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    assert same, f"{name} differs: {a} and {b}"


def _float32(value: float) -> float:
    return torch.tensor(value, dtype=torch.float32).item()


def _rows(events: EventBatch) -> list[tuple[int, int, int]]:
    return list(zip(events.src.tolist(), events.dst.tolist(), events.t.tolist(), strict=True))
