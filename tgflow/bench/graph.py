"""Benchmarks of the block store and of the samplers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median

import torch
from torch import Tensor

from tgflow import _core
from tgflow.bench.row import Params, Row
from tgflow.bench.setup import Options, PowerLaw, restored_threads, seconds_of
from tgflow.cuda.device import Device
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.sampling import Neighbors, recent_neighbors, sample_hops, uniform_neighbors

K = 10
CALL, GPU_CALL = 3_000, 1_000_000
"""Queries a call."""
ROOTS = 600
"""Roots of a batch of 200 events: sources, destinations, negatives."""
BULK, MICRO = 1_000_000, 1_000
"""Events a batch."""
MICRO_NAME, LOOP = "insert, micro-batches", "update, then sample"
CSR_ENTRY_BYTES, CSR_OFFSET_BYTES = 16, 4
MOST_NODES = 2_500_000
MAIN_SIZE = 50_000_000
"""The graph size in entries that most targets apply to."""
BULK_TARGETS = {"cpu": 4e6, "cuda": 100e6}
MICRO_TARGET, BYTES_TARGET, SLACK_TARGET = 1.5e6, 24.0, 0.10
QUERY_TARGETS = {
    "cpu": {"recent": 4e6, "uniform": 3e6},
    "cuda": {"recent": 300e6, "uniform": 150e6},
}
HOP_TARGETS = {"1 hop": 20e6, "2 hops": 2e6}
GPU_HOPS_TARGET = 150.0

Queries = Sequence[tuple[Tensor, Tensor]]
Sample = Callable[[TemporalGraph, Tensor, Tensor], Neighbors]

STRATEGIES: Mapping[str, Sample] = {
    "recent": partial(recent_neighbors, k=K),
    "uniform": partial(uniform_neighbors, k=K, key=1),
}


def store(options: Options) -> list[Row]:
    """Measure inserts and memory on one core: generated streams, then the files."""
    with restored_threads():
        _core.set_num_threads(1)
        rows = [row for device in options.devices for row in store_rows(options, device)]
        for name, events in {} if options.only_device else options.streams().items():
            options.say(f"store: {name}")
            rows += store_stream_rows(name, events, options.rounds)
        return rows


def sample(options: Options) -> list[Row]:
    """Measure the samplers: on graphs of rising size, then on the files or a generated stream."""
    with restored_threads():
        rows = [row for device in options.devices for row in sample_rows(options, device)]
        for name, events in {} if options.only_device else options.streams().items():
            options.say(f"sample: {name}")
            rows += sample_stream_rows(name, events, options)
        name, events = options.wikipedia()
        return rows + [hops_row(name, events, device) for device in options.devices]


class GrowingGraph:
    """A graph of the first events of a power-law stream.

    Args:
        sizes: Graph sizes in entries. The stream has a twentieth of the largest as nodes.
        device: The graph's device.
    """

    def __init__(self, sizes: Sequence[int], device: str | Device = "cpu") -> None:
        self.stream = PowerLaw(max(min(max(sizes) // 20, MOST_NODES), 2))
        self.graph = TemporalGraph(device=device)
        self.device = self.graph.device.type

    def params(self, entries: int) -> Params:
        """Return the parameters of rows about a graph of `entries`."""
        nodes = self.stream.num_nodes
        return {"stream": "power law", "entries": entries, "nodes": nodes, "device": self.device}

    def grow_to(self, entries: int) -> list[float]:
        """Append events up to `entries`, two an event; return seconds per event of each batch."""
        costs = []
        while (missing := entries // 2 - self.graph.num_events) > 0:
            events = self.read(min(BULK, missing))
            costs.append(self.append(events) / len(events))
        return costs

    def read(self, size: int) -> EventBatch:
        """Return the stream's next events."""
        return self.stream.read(self.graph.num_events, self.graph.num_events + size)

    def append(self, events: EventBatch) -> float:
        """Append events and return the duration in seconds."""
        return seconds_of(lambda: self.graph.append(events), self.device)


def store_rows(options: Options, device: str | Device = "cpu") -> Iterator[Row]:
    """Measure inserts and memory of one growing graph at each size."""
    growing = GrowingGraph(options.sizes, device)
    graph = growing.graph
    for size in options.sizes:
        options.say(f"store: {size:,} entries on {growing.device}")
        costs = growing.grow_to(size)
        params = growing.params(size) | {"threads": 1}
        speed = 1 / min(costs[-5:], default=float("nan"))
        sized = params | {"batch": min(BULK, size // 2)}
        yield Row("insert, bulk", speed, "events/s", sized, BULK_TARGETS[growing.device])
        batches = 20 if options.quick else 300
        seconds = [growing.append(growing.read(MICRO)) for _ in range(batches)]
        yield from micro_rows(torch.tensor(seconds, dtype=torch.float64), MICRO * batches, params)
        yield from memory_rows(graph, params, size == MAIN_SIZE)
    graph.compact()
    stats = graph.stats()
    yield Row("memory, compacted", stats.bytes / max(stats.num_entries, 1), "bytes/entry", params)


def store_stream_rows(name: str, events: EventBatch, rounds: int) -> Iterator[Row]:
    """Measure inserts of a whole stream, in bulk and in micro-batches, and its memory."""
    num_entries = TemporalGraph.from_events(events).stats().num_entries
    params: Params = {"stream": name, "entries": num_entries, "device": "cpu", "threads": 1}
    seconds, _ = insert_all(events, BULK, rounds)
    sized = params | {"batch": min(BULK, len(events))}
    yield Row("insert, bulk", len(events) / float(seconds.sum()), "events/s", sized)
    seconds, graph = insert_all(events, MICRO, rounds)
    yield from micro_rows(seconds, len(events), params)
    yield from memory_rows(graph, params, has_targets=False)


def insert_all(events: EventBatch, size: int, rounds: int) -> tuple[Tensor, TemporalGraph]:
    """Insert a stream in batches; return the best seconds of each batch, and the last graph."""
    batches = [events[at : at + size] for at in range(0, len(events), size)]
    tries = []
    for _ in range(rounds):
        graph = TemporalGraph()
        tries.append([seconds_of(partial(graph.append, batch)) for batch in batches])
    return torch.tensor(tries, dtype=torch.float64).amin(0), graph


def micro_rows(seconds: Tensor, num_events: int, params: Params) -> Iterator[Row]:
    """Return speed, median and 99th percentile of micro-batches."""
    params = params | {"batch": MICRO}
    yield Row(MICRO_NAME, num_events / float(seconds.sum()), "events/s", params, MICRO_TARGET)
    limit = 1e3 if params["device"] == "cuda" else None
    for label, share, target in (("p50", 0.5, None), ("p99", 0.99, limit)):
        value = 1e6 * float(seconds.quantile(share))
        yield Row(f"{MICRO_NAME}, {label}", value, "us", params, target)


def memory_rows(graph: TemporalGraph, params: Params, has_targets: bool) -> Iterator[Row]:
    """Return bytes per entry, beside those of a static CSR, and the share of unused room."""
    stats = graph.stats()
    entries = max(stats.num_entries, 1)
    csr_bytes = CSR_ENTRY_BYTES + CSR_OFFSET_BYTES * graph.num_nodes / entries
    target, slack = (BYTES_TARGET, SLACK_TARGET) if has_targets else (None, None)
    yield Row("memory", stats.bytes / entries, "bytes/entry", params, target, csr_bytes)
    yield Row("slack", stats.slack, "of the room", params, slack)


def sample_rows(options: Options, device: str | Device = "cpu") -> Iterator[Row]:
    """Measure queries, and updates followed by queries, on one growing graph at each size."""
    growing = GrowingGraph(options.sizes, device)
    call = CALL if growing.device == "cpu" or options.quick else GPU_CALL
    calls = 4 if options.quick else 300_000 // call or 8
    for size in options.sizes:
        options.say(f"sample: {size:,} entries on {growing.device}")
        growing.grow_to(size)
        params = growing.params(size)
        queries = random_queries(growing, calls, call)
        yield from query_rows("cold", growing.graph, queries, params, options, size == MAIN_SIZE)
        ends = end_queries(growing.graph, calls, call)
        yield from query_rows("cold, ends of events", growing.graph, ends, params, options)
        seconds = [update_then_sample(growing) for _ in range(2 if options.quick else 30)]
        sized = params | {"inserted": MICRO, "queries": CALL, "threads": 1}
        yield Row(LOOP, 1e6 * median(seconds), "us/step", sized)


def random_queries(growing: GrowingGraph, calls: int, size: int = CALL) -> Queries:
    """Return calls for random nodes at random times, which find cold caches."""
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randint(growing.stream.num_nodes, (size,), generator=generator),
            torch.randint(growing.graph.num_events, (size,), generator=generator),
        )
        for _ in range(calls)
    ]


def end_queries(graph: TemporalGraph, calls: int, size: int) -> Queries:
    """Return calls for both ends of random events at their times."""
    generator = torch.Generator().manual_seed(2)
    queries = []
    for _ in range(calls):
        events = graph.log.gather(
            torch.randint(graph.num_events, (size // 2,), generator=generator)
        )
        queries.append((torch.cat([events.src, events.dst]), events.t.repeat(2)))
    return queries


def chronological(events: EventBatch, batch_size: int = ROOTS // 3) -> Queries:
    """Return the roots of each batch of events: sources, destinations, random negatives."""
    generator = torch.Generator().manual_seed(0)
    destinations = torch.unique(events.dst)
    queries = []
    for start in range(0, len(events), batch_size):
        batch = events[start : start + batch_size]
        pick = torch.randint(0, len(destinations), (len(batch),), generator=generator)
        queries.append((torch.cat([batch.src, batch.dst, destinations[pick]]), batch.t.repeat(3)))
    return queries


def query_rows(
    what: str,
    graph: TemporalGraph,
    queries: Queries,
    params: Params,
    options: Options,
    has_targets: bool = False,
) -> Iterator[Row]:
    """Return queries per second of each strategy, on one thread."""
    _core.set_num_threads(1)
    device = graph.device.type
    sized = params | {"k": K, "queries": len(queries[0][0]), "threads": 1}
    queries = [(nodes.to(graph.device), t.to(graph.device)) for nodes, t in queries]
    num = sum(len(nodes) for nodes, _ in queries)
    for strategy, method in STRATEGIES.items():
        seconds = best_seconds(
            [partial(method, graph, *each) for each in queries], options.rounds, device
        )
        target = QUERY_TARGETS[device][strategy] if has_targets else None
        yield Row(f"{strategy}, {what}", num / seconds, "queries/s", sized, target)


def best_seconds(calls: Sequence[Callable[[], object]], rounds: int, device: str = "cpu") -> float:
    """Return the duration of all calls; of each call the best of `rounds`."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        best = [min(old, seconds_of(call, device)) for old, call in zip(best, calls, strict=True)]
    return sum(best)


def update_then_sample(growing: GrowingGraph) -> float:
    """Append 1,000 events, sample 3,000 queries, and return the duration in seconds."""
    events, graph = growing.read(MICRO), growing.graph
    negatives = torch.randint(growing.stream.num_nodes, (CALL - 2 * MICRO,))
    nodes = torch.cat([events.src, events.dst, negatives]).to(graph.device)
    t = torch.full_like(nodes, graph.num_events + MICRO)
    return growing.append(events) + seconds_of(
        lambda: recent_neighbors(graph, nodes, t, K), growing.device
    )


def sample_stream_rows(name: str, events: EventBatch, options: Options) -> Iterator[Row]:
    """Measure random queries on a whole stream, and one hop and two for its events in order."""
    graph = TemporalGraph.from_events(events)
    num_entries = graph.stats().num_entries
    params: Params = {"stream": name, "entries": num_entries, "device": "cpu"}
    generator = torch.Generator().manual_seed(1)
    first, last = (int(events.t[0]), int(events.t[-1])) if len(events) else (0, 0)
    queries = [
        (
            torch.randint(graph.num_nodes, (CALL,), generator=generator),
            torch.randint(first, last + 1, (CALL,), generator=generator),
        )
        for _ in range(4 if options.quick else 100)
    ]
    yield from query_rows("random", graph, queries, params, options)
    _core.set_num_threads(2)
    batches = chronological(events)
    for hops, every in ((1, 1), (2, 4)):
        some = batches[:8:every] if options.quick else batches[::every]
        seconds = best_seconds(
            [partial(recent_hops, graph, *each, hops) for each in some], options.rounds
        )
        sized = params | {"k": K, "roots": ROOTS, "threads": 2}
        what = ("1 hop", "2 hops")[hops - 1]
        target = HOP_TARGETS[what] if name.startswith("wikipedia") else None
        speed = sum(len(nodes) for nodes, _ in some) / seconds
        yield Row(f"recent, {what}", speed, "roots/s", sized, target)


def recent_hops(graph: TemporalGraph, nodes: Tensor, t: Tensor, hops: int) -> Neighbors:
    """Sample the last of `hops` hops."""
    found = recent_neighbors(graph, nodes, t, K)
    for _ in range(hops - 1):
        found = recent_neighbors(graph, found.nodes.view(-1), found.t.view(-1), K)
    return found


def hops_row(name: str, events: EventBatch, device: str | Device = "cpu") -> Row:
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
    target = GPU_HOPS_TARGET if kind == "cuda" else None
    return Row("sample_hops, two hops", 1e6 * median(seconds), "us", params, target)
