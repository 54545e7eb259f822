"""The block store and the samplers beside a static CSR, on the CPU and one thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

import torch

from benchmarks.race import take_turns
from benchmarks.static_csr import StaticCsr, static_csr
from tgflow import _core
from tgflow.bench.graph import (
    CALL,
    LOOP,
    MICRO,
    MICRO_NAME,
    STRATEGIES,
    GrowingGraph,
    K,
    random_queries,
)
from tgflow.bench.row import Row
from tgflow.bench.setup import Options, restored_threads, seconds_of
from tgflow.sampling import Neighbors

LOOP_SIZE = 10_000_000
LOOP_TARGET = 50.0
"""How many times faster than a rebuild an update is at `LOOP_SIZE` entries."""


def store_beside_csr(rows: Sequence[Row], options: Options) -> list[Row]:
    """Add the speeds of rebuilding the CSR, and of merging events into it, to rows of the store."""
    csr, speeds = static_csr(), {}
    if csr is None:
        return list(rows)
    with restored_threads():
        _core.set_num_threads(1)
        growing = GrowingGraph(options.sizes)
        for size in options.sizes:
            options.say(f"store: a static CSR of {size:,} entries")
            growing.grow_to(size)
            build = partial(csr.build, growing.graph.log)
            rebuild_s = min(seconds_of(build) for _ in range(1 if options.quick else 3))
            merges = []
            for _ in range(2 if options.quick else 30):
                events = growing.read(MICRO)
                merges.append(seconds_of(partial(csr.insert, events)))
                growing.append(events)
            speeds[size] = rebuild_s, MICRO / median(merges)
    return list(_with_speeds(rows, speeds))


def _with_speeds(rows: Sequence[Row], speeds: Mapping[int, tuple[float, float]]) -> Iterator[Row]:
    for row in rows:
        is_made = row.params["device"] == "cpu" and row.params["stream"] == "power law"
        if not is_made or row.name not in ("insert, bulk", MICRO_NAME):
            yield row
            continue
        rebuild_s, merge = speeds[int(row.params["entries"])]
        yield replace(row, baseline=float(row.params["batch"]) / rebuild_s)
        if row.name == MICRO_NAME:
            yield replace(row, name=f"{MICRO_NAME} beside a merge", baseline=merge)


def sample_beside_csr(rows: Sequence[Row], options: Options) -> list[Row]:
    """Replace rows of cold queries and of updates by rows measured in turns with the CSR."""
    csr = static_csr()
    if csr is None:
        return list(rows)
    with restored_threads():
        _core.set_num_threads(1)
        growing = GrowingGraph(options.sizes)
        beside: list[Row] = []
        for size in options.sizes:
            options.say(f"sample: a static CSR of {size:,} entries")
            growing.grow_to(size)
            csr.build(growing.graph.log)
            own = {row.name: row for row in rows if row.params.get("entries") == size}
            beside += _query_rows(own, growing, csr, options)
            beside += _loop_rows(own[LOOP], growing, csr, options)
    names = {(row.name, row.params.get("entries")) for row in beside}
    kept = [row for row in rows if (row.name, row.params.get("entries")) not in names]
    return [*beside, *kept]


def _query_rows(
    own: Mapping[str, Row], growing: GrowingGraph, csr: StaticCsr, options: Options
) -> Iterator[Row]:
    queries = random_queries(growing, 4 if options.quick else 100)
    others = {"recent": partial(csr.recent, k=K), "uniform": partial(csr.uniform, k=K, key=1)}
    for strategy, other in others.items():
        ours = partial(STRATEGIES[strategy], growing.graph)
        for nodes, t in queries[:10]:
            check_equal(strategy, ours(nodes, t), other(nodes, t))
        methods = {
            name: lambda i, call=call: call(*queries[i])
            for name, call in (("ours", ours), ("other", other))
        }
        seconds = take_turns(methods, len(queries), options.rounds)
        speed, baseline = (CALL * len(queries) / float(each.sum()) for each in seconds.values())
        yield replace(own[f"{strategy}, cold"], value=speed, baseline=baseline)


def _loop_rows(row: Row, growing: GrowingGraph, csr: StaticCsr, options: Options) -> Iterator[Row]:
    """Append 1,000 events and sample 3,000 queries; the CSR is rebuilt, or merges the events."""
    ours, rebuilt, merged = [], [], []
    for step in range(2 if options.quick else 30):
        events = growing.read(MICRO)
        nodes = torch.cat([events.src, events.dst, events.src])
        t = torch.full_like(nodes, growing.graph.num_events + MICRO)
        own = partial(STRATEGIES["recent"], growing.graph, nodes, t)
        other = partial(csr.recent, nodes, t, K)
        ours.append(growing.append(events) + seconds_of(own))
        merged.append(seconds_of(partial(csr.insert, events)) + seconds_of(other))
        check_equal(LOOP, own(), other())
        if step < 3:
            build = partial(csr.build, growing.graph.log)
            rebuilt.append(seconds_of(build) + seconds_of(other))
    own_us, rebuild_us, merge_us = (1e6 * median(each) for each in (ours, rebuilt, merged))
    least = LOOP_TARGET if row.params["entries"] == LOOP_SIZE else None
    yield replace(row, value=own_us, baseline=rebuild_us, target_ratio=least)
    yield replace(row, name=f"{LOOP} beside a merge", value=own_us, baseline=merge_us)


def check_equal(what: str, ours: Neighbors, other: Neighbors) -> None:
    """Raise RuntimeError unless two answers are equal, bit for bit."""
    for column in ("nodes", "t", "eid", "count"):
        if not torch.equal(getattr(ours, column).cpu(), getattr(other, column)):
            raise RuntimeError(f"{what}: the answers differ in {column!r}")
