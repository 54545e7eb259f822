"""How fast the block store takes events as it grows, and what they cost to hold."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from tgflow import _core
from tgflow.bench.baseline import Baseline, NewBaseline, check_equal, open_baseline, rate
from tgflow.bench.grown import BULK, POWER_LAW, Grown
from tgflow.bench.options import Options
from tgflow.bench.queries import K, random_queries
from tgflow.bench.row import Params, Row
from tgflow.bench.turns import restored_threads, seconds_of
from tgflow.cuda.device import Device
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.sampling import recent_neighbors

MICRO_NAME = "insert, micro-batches"
MICRO = 1000
"""Events a micro-batch."""
MICRO_BATCHES = 300
CSR_ENTRY_BYTES = 16
CSR_OFFSET_BYTES = 4
BULK_TARGETS = {"cpu": 4e6, "cuda": 100e6}
MICRO_TARGET = 1.5e6
BYTES_TARGET, SLACK_TARGET = 24.0, 0.10
MAIN_SIZE = 50_000_000
"""The size that the figures for memory are to be reached at."""


def run(options: Options, new_baseline: NewBaseline = None) -> list[Row]:
    """Measure inserts and memory, both directions, on one core: made streams, then the files."""
    with restored_threads():
        _core.set_num_threads(1)
        baseline = open_baseline(new_baseline, options)
        rows = [row for device in options.devices for row in growth_rows(options, device, baseline)]
        if options.only_device:
            return rows
        for name, events in options.streams().items():
            options.say(f"store: {name}")
            rows += stream_rows(name, events, options, baseline)
        return rows


def growth_rows(
    options: Options, device: str | Device = "cpu", baseline: Baseline | None = None
) -> Iterator[Row]:
    """One stream that grows through all sizes; at each of them inserts, rebuilds and memory."""
    grown = Grown(options.sizes, device)
    for size in options.sizes:
        options.say(f"store: {size:,} entries on {grown.device}")
        costs = grown.grow_to(size)
        params: Params = {
            "stream": POWER_LAW,
            "entries": size,
            "nodes": grown.num_nodes,
            "device": grown.device,
            "threads": 1,
        }
        batch = min(BULK, size // 2)
        rebuild_s = rebuild_seconds(grown.graph, baseline, grown.num_events, options)
        yield Row(
            "insert, bulk",
            1e9 / min(costs[-5:], default=float("nan")),
            "events/s",
            params | {"batch": batch},
            BULK_TARGETS[grown.device],
            rate(batch, rebuild_s),
        )
        yield from micro_rows(grown, baseline, params, rebuild_s, options)
        yield from memory_rows(grown.graph, params, size == MAIN_SIZE)
    grown.graph.compact()
    stats = grown.graph.stats()
    yield Row("memory, compacted", stats.bytes / max(stats.num_entries, 1), "bytes/entry", params)


def rebuild_seconds(
    graph: TemporalGraph, baseline: Baseline | None, stop: int, options: Options
) -> float | None:
    """Build the baseline of a graph's events and return the least time that takes.

    Raises:
        RuntimeError: If it answers queries before time `stop` otherwise than the graph.
    """
    if baseline is None:
        return None
    build = partial(baseline.build, graph.log)
    build()
    for nodes, t in random_queries(graph.num_nodes, stop, calls=1):
        found = recent_neighbors(graph, nodes.to(graph.device), t.to(graph.device), K)
        check_equal("baseline", found, baseline.recent(nodes, t, K))
    return min(seconds_of(build) for _ in range(1 if options.quick else 3))


def memory_rows(graph: TemporalGraph, params: Params, binding: bool = True) -> Iterator[Row]:
    """Bytes per entry beside a static CSR's, and unused room.

    After micro-batches: while batches of 1 M keep coming, their working memory counts as well.
    """
    stats = graph.stats()
    entries = max(stats.num_entries, 1)
    csr_bytes = CSR_ENTRY_BYTES + CSR_OFFSET_BYTES * graph.num_nodes / entries
    target, slack = (BYTES_TARGET, SLACK_TARGET) if binding else (None, None)
    yield Row("memory", stats.bytes / entries, "bytes/entry", params, target, csr_bytes)
    yield Row("slack", stats.slack, "of the room", params, slack)


def micro_rows(
    grown: Grown,
    baseline: Baseline | None,
    params: Params,
    rebuild_s: float | None,
    options: Options,
) -> Iterator[Row]:
    """Batches of 1,000, one by one, beside rebuilding the baseline and a merge into it."""
    batches = 20 if options.quick else MICRO_BATCHES
    ours: list[float] = []
    merge: list[float] = []
    for number in range(batches):
        events = grown.read(MICRO)
        ours.append(grown.append(events))
        if baseline is not None and number < batches // 10:
            merge.append(seconds_of(partial(baseline.insert, events)))
    seconds = torch.tensor(ours, dtype=torch.float64)
    name, speed, params = MICRO_NAME, MICRO / float(seconds.mean()), params | {"batch": MICRO}
    yield Row(name, speed, "events/s", params, MICRO_TARGET, rate(MICRO, rebuild_s))
    if merge:
        merged = MICRO / sorted(merge)[len(merge) // 2]
        yield Row(f"{name} beside a merge", speed, "events/s", params, MICRO_TARGET, merged)
    yield from quantile_rows(seconds, params)


def quantile_rows(seconds: Tensor, params: Params) -> Iterator[Row]:
    """The median micro-batch and the slowest of a hundred."""
    limit = 1e3 if params.get("device") == "cuda" else None
    for label, share, target in (("p50", 0.5, None), ("p99", 0.99, limit)):
        worst = float(seconds.quantile(share)) * 1e6
        yield Row(f"{MICRO_NAME}, {label}", worst, "us", params, target)


def stream_rows(
    name: str, events: EventBatch, options: Options, baseline: Baseline | None = None
) -> Iterator[Row]:
    """One stream whole: in bulk, in micro-batches, and its memory."""
    num_entries = TemporalGraph.from_events(events).stats().num_entries
    params: Params = {"stream": name, "entries": num_entries, "device": "cpu", "threads": 1}
    for what, batch, target in (("insert, bulk", BULK, None), (MICRO_NAME, MICRO, MICRO_TARGET)):
        seconds, graph = insert_all(events, batch, options.rounds)
        rebuild_s = rebuild_seconds(graph, baseline, int(events.t[-1]) + 1, options)
        speed, size = len(events) / float(seconds.sum()), min(batch, len(events))
        sized = params | {"batch": size}
        yield Row(what, speed, "events/s", sized, target, rate(size, rebuild_s))
    yield from quantile_rows(seconds, sized)
    yield from memory_rows(graph, params, binding=False)


def insert_all(events: EventBatch, size: int, rounds: int) -> tuple[Tensor, TemporalGraph]:
    """Insert a stream in batches of `size`; returns the best seconds of each, and a graph."""
    batches = [events[at : at + size] for at in range(0, len(events), size)]
    tries = []
    for _ in range(rounds):
        graph = TemporalGraph()
        tries.append([seconds_of(partial(graph.append, batch)) for batch in batches])
    return torch.tensor(tries, dtype=torch.float64).amin(0), graph
