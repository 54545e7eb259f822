"""Benchmarks of the block store and of the samplers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median

import torch
from torch import Tensor

from tgflow import _core
from tgflow.cli.benchmarks.row import Params, Row
from tgflow.cli.benchmarks.setup import Options, PowerLaw, restored_threads, seconds_of
from tgflow.cuda.device import Device
from tgflow.graph import TemporalGraph
from tgflow.graph.events import EventBatch
from tgflow.graph.sampling import Neighbors, recent_neighbors, sample_hops, uniform_neighbors

K = 10
CALL, GPU_CALL = 3_000, 1_000_000
ROOTS = 600
"""Roots of a batch of 200 events: sources, destinations, negatives."""
BULK, MICRO = 1_000_000, 1_000
MICRO_NAME = "insert, micro-batches"
CSR_ENTRY_BYTES, CSR_OFFSET_BYTES = 16, 4
MAIN_SIZE = 50_000_000
"""Entries of the graph that the targets of queries and memory apply to."""
BULK_TARGET, MICRO_TARGET, BYTES_TARGET = 4e6, 1.5e6, 24.0
QUERY_TARGETS = {"recent": 4e6, "uniform": 3e6}

Queries = Sequence[tuple[Tensor, Tensor]]
Sample = Callable[[TemporalGraph, Tensor, Tensor], Neighbors]

STRATEGIES: Mapping[str, Sample] = {
    "recent": partial(recent_neighbors, k=K),
    "uniform": partial(uniform_neighbors, k=K, key=1),
}


class GrowingGraph:
    """A graph of the first events of a stream, whose events at `[start, stop)` are `read(start,
    stop)`.
    """

    def __init__(
        self, read: Callable[[int, int], EventBatch], device: str | Device = "cpu"
    ) -> None:
        self._read = read
        self.graph = TemporalGraph(device=device)
        self.device = self.graph.device.type
        self.costs: list[float] = []
        """Seconds per event of each batch of `grow_to`."""

    def grow_to(self, num_events: int) -> None:
        while (missing := num_events - self.graph.num_events) > 0:
            events = self.read(min(BULK, missing))
            self.costs.append(self.append(events) / len(events))

    def read(self, size: int) -> EventBatch:
        """Return the stream's next events, at most `size`."""
        return self._read(self.graph.num_events, self.graph.num_events + size)

    def append(self, events: EventBatch) -> float:
        return seconds_of(lambda: self.graph.append(events), self.device)


def grown_graphs(
    options: Options, device: str | Device, num_left: int = 0
) -> Iterator[tuple[GrowingGraph, Params]]:
    """Yield graphs with the parameters of their rows.

    A graph of a power-law stream grows to each size; on the CPU a graph per file follows, without
    its last `num_left` events, but with at least half of its events.
    """
    growing = GrowingGraph(PowerLaw.of_sizes(options.sizes).read, device)
    for size in options.sizes:
        options.say(f"{size:,} entries on {growing.device}")
        growing.grow_to(size // 2)
        params: Params = {"stream": "power law", "entries": size, "nodes": growing.graph.num_nodes}
        yield growing, params | {"device": growing.device, "threads": 1}
    for name, events in options.streams().items() if device == "cpu" else ():
        options.say(name)
        growing = GrowingGraph(partial(_between, events))
        growing.grow_to(max(len(events) - num_left, len(events) // 2))
        num_entries = growing.graph.stats().num_entries
        yield growing, {"stream": name, "entries": num_entries, "device": "cpu", "threads": 1}


def _between(events: EventBatch, start: int, stop: int) -> EventBatch:
    return events[start:stop]


def store(options: Options) -> list[Row]:
    """Measure inserts and memory: a generated stream, then the files; on one core, or beside a GPU.

    There all of the core's threads stage the events that it waits for.
    """
    rows: list[Row] = []
    num_left = MICRO * (20 if options.quick else 300)
    with restored_threads():
        for device in options.devices:
            _core.set_num_threads(1 if device == "cpu" else os.cpu_count() or 1)
            for growing, params in grown_graphs(options, device, num_left):
                sized = params | {"threads": _core.num_threads()}
                rows += store_rows(growing, sized, num_left // MICRO)
    return rows


def store_rows(growing: GrowingGraph, params: Params, num_batches: int) -> Iterator[Row]:
    """Return speeds of inserts in bulk and in micro-batches, and the memory of the graph."""
    target = BULK_TARGET if growing.device == "cpu" else None
    batch = min(BULK, growing.graph.num_events)
    speed = 1 / min(growing.costs[-5:])
    yield Row("insert, bulk", speed, "events/s", params | {"batch": batch}, target)
    batches, seconds = 0, []
    for _ in range(num_batches):
        if len(events := growing.read(MICRO)):
            batches += len(events)
            seconds.append(growing.append(events))
    sized = params | {"batch": MICRO}
    yield Row(MICRO_NAME, batches / sum(seconds), "events/s", sized, MICRO_TARGET)
    p99 = 1e6 * float(torch.tensor(seconds, dtype=torch.float64).quantile(0.99))
    yield Row(f"{MICRO_NAME}, p99", p99, "us", sized)
    stats = growing.graph.stats()
    entries = max(stats.num_entries, 1)
    csr_bytes = CSR_ENTRY_BYTES + CSR_OFFSET_BYTES * growing.graph.num_nodes / entries
    target = BYTES_TARGET if params["entries"] == MAIN_SIZE else None
    yield Row("memory", stats.bytes / entries, "bytes/entry", params, target, csr_bytes)


def sample(options: Options) -> list[Row]:
    """Measure the samplers: on graphs of rising size, then on the files or a generated stream."""
    with restored_threads():
        rows = [
            row
            for device in options.devices
            for growing, params in grown_graphs(options, device)
            for row in query_rows(growing.graph, params, options)
        ]
        name, events = options.wikipedia()
        return rows + [sample_hops_row(name, events, device) for device in options.devices]


def query_rows(graph: TemporalGraph, params: Params, options: Options) -> Iterator[Row]:
    """Return random queries per second of each strategy, on one thread."""
    _core.set_num_threads(1)
    on_cpu = graph.device.type == "cpu"
    size = CALL if on_cpu or options.quick else GPU_CALL
    queries = random_queries(graph, 4 if options.quick else 300_000 // size or 8, size)
    is_made = params["stream"] == "power law"
    for strategy, method in STRATEGIES.items():
        calls = [partial(method, graph, *each) for each in queries]
        speed = size * len(calls) / best_seconds(calls, options.rounds, graph.device.type)
        target = QUERY_TARGETS[strategy] if on_cpu and params["entries"] == MAIN_SIZE else None
        name = f"{strategy}, {'cold' if is_made else 'random'}"
        yield Row(name, speed, "queries/s", params | {"k": K, "queries": size}, target)


def random_queries(graph: TemporalGraph, calls: int, size: int = CALL) -> Queries:
    """Return calls for random nodes at random times, which find cold caches."""
    generator = torch.Generator().manual_seed(1)
    first, last = int(graph.log.read(0, 1).t), graph.log.t_last or 0
    return [
        (
            torch.randint(graph.num_nodes, (size,), generator=generator).to(graph.device),
            torch.randint(first, last + 1, (size,), generator=generator).to(graph.device),
        )
        for _ in range(calls)
    ]


def chronological(events: EventBatch) -> Queries:
    """Return the roots of each batch of events: sources, destinations, random negatives."""
    generator = torch.Generator().manual_seed(0)
    destinations = torch.unique(events.dst)
    queries = []
    for start in range(0, len(events), ROOTS // 3):
        batch = events[start : start + ROOTS // 3]
        pick = torch.randint(0, len(destinations), (len(batch),), generator=generator)
        queries.append((torch.cat([batch.src, batch.dst, destinations[pick]]), batch.t.repeat(3)))
    return queries


def best_seconds(calls: Sequence[Callable[[], object]], rounds: int, device: str = "cpu") -> float:
    """Return the duration of all calls; of each call the best of `rounds`."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        best = [min(old, seconds_of(call, device)) for old, call in zip(best, calls, strict=True)]
    return sum(best)


def sample_hops_row(name: str, events: EventBatch, device: str | Device = "cpu") -> Row:
    """Return the median time of `sample_hops` for the 600 roots of late batches, two hops of 10."""
    _core.set_num_threads(2)
    graph = TemporalGraph.from_events(events, device=device)
    kind = graph.device.type
    calls = [
        partial(sample_hops, graph, nodes.to(graph.device), t.to(graph.device), [K, K])
        for nodes, t in chronological(events)[-50:-1]
    ]
    seconds = [min(seconds_of(call, kind) for _ in range(3)) for call in calls]
    params: Params = {"stream": name, "k": "10x10", "roots": ROOTS, "device": kind}
    return Row("sample_hops, two hops", 1e6 * median(seconds), "us", params)
