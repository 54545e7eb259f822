"""Speed of the block store and of the samplers, alone and against other libraries."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks import peers
from benchmarks.options import Options, PowerLaw, restored_threads, seconds_of
from benchmarks.race import take_turns
from benchmarks.results import Params, Row, skipped
from tgflow import EventBatch, TemporalGraph, _core
from tgflow.cuda.device import Device
from tgflow.graph.sampling import Neighbors, recent_neighbors, uniform_neighbors

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

OWN = "tgflow"
PEER_BATCH = 200
HOP_TARGETS = {1: 20e6, 2: 2e6}

LOOP_SIZE = 10_000_000
REBUILD_TARGET = 21.0

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
    """Measure the samplers on graphs of rising size and on the files, and hops in order."""
    with restored_threads():
        rows = [
            row
            for device in options.devices
            for growing, params in grown_graphs(options, device)
            for row in query_rows(growing.graph, params, options)
        ]
        for device in options.devices:
            if device != "cpu":
                rows += rebuild_rows(options, device)
        for name, events in {} if options.only_device else options.streams().items():
            rows += ordered_rows(name, events, options)
        return rows


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


def ordered_rows(name: str, events: EventBatch, options: Options) -> Iterator[Row]:
    """Measure one hop and two for the events of a stream in order."""
    graph = TemporalGraph.from_events(events)
    _core.set_num_threads(2)
    batches = chronological(events)
    params: Params = {"stream": name, "entries": graph.stats().num_entries, "device": "cpu"}
    for hops, every in ((1, 1), (2, 4)):
        some = batches[:8:every] if options.quick else batches[::every]
        calls = [partial(recent_hops, graph, *each, hops) for each in some]
        speed = sum(len(nodes) for nodes, _ in some) / best_seconds(calls, options.rounds)
        sized = params | {"k": K, "roots": ROOTS, "threads": 2}
        target = HOP_TARGETS[hops] if name.startswith("wikipedia") else None
        what = "1 hop" if hops == 1 else "2 hops"
        yield Row(f"recent, {what}", speed, "roots/s", sized, target)


def recent_hops(graph: TemporalGraph, nodes: Tensor, t: Tensor, hops: int) -> Neighbors:
    """Sample the last of `hops` hops."""
    found = recent_neighbors(graph, nodes, t, K)
    for _ in range(hops - 1):
        found = recent_neighbors(graph, found.nodes.view(-1), found.t.view(-1), K)
    return found


class OwnSampler:
    """A `TemporalGraph` with the methods of the samplers in `benchmarks.peers`."""

    def __init__(self, k: int) -> None:
        self.graph, self.k = TemporalGraph(), k

    def insert(self, events: EventBatch) -> None:
        """Add events that follow."""
        self.graph.append(events)

    def two_hops(self, nodes: Tensor, t: Tensor) -> object:
        """Sample two hops."""
        return recent_hops(self.graph, nodes, t, 2)

    def neighbors(self, nodes: Tensor, t: Tensor) -> Tensor:
        """Return the neighbors' ids, int64 `[Q, k]`, -1 where there is none, in any order."""
        return recent_neighbors(self.graph, nodes, t, self.k).nodes


def samplers(events: EventBatch, k: int) -> dict[str, Any]:
    """Return empty samplers by library: tgflow's, and the peer's if it is installed."""
    num_nodes = int(torch.maximum(events.src, events.dst).max()) + 1
    peer = peers.load(peers.SAMPLER, num_nodes, k)
    return {OWN: OwnSampler(k)} | ({} if isinstance(peer, str) else {peers.SAMPLER.library: peer})


def share_equal(ours: Tensor, theirs: Tensor) -> float:
    """Return the share of rows that hold the same neighbors, in any order."""
    equal = (ours.sort(1).values == theirs.sort(1).values).all(1)
    return float(equal.double().mean()) if len(equal) else 1.0


def insert_rows(name: str, events: EventBatch, options: Options) -> Iterator[Row]:
    """Insert batches of 200 into each library's own store of recent neighbors, in turns."""
    events = events[: PEER_BATCH * (20 if options.quick else 500)]
    batches = [events[at : at + PEER_BATCH] for at in range(0, len(events), PEER_BATCH)]
    present = samplers(events, K)

    def insert(sampler: Any) -> Callable[[int], None]:
        return lambda i: sampler.insert(batches[i])

    methods = {library: insert(sampler) for library, sampler in present.items()}
    seconds = take_turns(methods, len(batches))
    speeds = {library: len(events) / float(each.sum()) for library, each in seconds.items()}
    params: Params = {"stream": name, "events": len(events), "batch": PEER_BATCH, "threads": 1}
    yield from library_rows("insert, beside the peers", "events/s", speeds, params)


def hop_rows(name: str, events: EventBatch, options: Options) -> Iterator[Row]:
    """Sample two hops of 10 for 600 roots from each library's store, while inserting the stream.

    `equal` is the share of rows of the first hop that hold the neighbors that tgflow found.
    """
    _core.set_num_threads(2)
    queries = chronological(events)[: 20 if options.quick else None]
    present = samplers(events, K)
    seconds: dict[str, list[float]] = {library: [] for library in present}
    equal: dict[str, list[float]] = {library: [] for library in present}
    for i, (nodes, t) in enumerate(queries):
        if i % 8 == 7:
            expected = present[OWN].neighbors(nodes, t)
            for library, sampler in present.items():
                equal[library].append(share_equal(expected, sampler.neighbors(nodes, t)))
                calls = [partial(sampler.two_hops, nodes, t)] * (1 if options.quick else 3)
                seconds[library].append(min(seconds_of(call) for call in calls))
        for sampler in present.values():
            sampler.insert(events[i * ROOTS // 3 : (i + 1) * ROOTS // 3])
    medians = {library: 1e6 * sorted(each)[len(each) // 2] for library, each in seconds.items()}
    params: Params = {"stream": name, "k": "10x10", "roots": ROOTS, "threads": 2}
    for row in library_rows("two hops, beside the peers", "us", medians, params, 1.5):
        shares = equal.get(str(row.params["library"]), [])
        share: Params = {"equal": round(sum(shares) / len(shares), 3)} if shares else {}
        yield replace(row, params=row.params | share)


def library_rows(
    name: str,
    unit: str,
    values: Mapping[str, float],
    params: Params,
    target_ratio: float | None = None,
) -> Iterator[Row]:
    """Yield a row per library; tgflow's is compared with the peer's."""
    peer = peers.SAMPLER.library
    for library, value in values.items():
        compared = (None, values[peer], target_ratio) if library == OWN and peer in values else ()
        yield Row(name, value, unit, {**params, "library": library}, *compared)
    if peer not in values:
        yield skipped(name, unit, {"library": peer}, peers.NOT_INSTALLED)


class SortedCsr:
    """A stream's entries in device memory, sorted by node again for each insert."""

    def __init__(self, num_nodes: int, device: torch.device) -> None:
        self._num_nodes, self._device = num_nodes, device
        self._src, self._dst = (torch.empty(0, dtype=torch.int64, device=device) for _ in range(2))
        self._begin, self._neighbor, self._eid = self._src, self._src, self._src

    def insert(self, events: EventBatch) -> None:
        """Add events, later than all before, and sort."""
        self._src = torch.cat([self._src, events.src.to(self._device)])
        self._dst = torch.cat([self._dst, events.dst.to(self._device)])
        loop = self._src == self._dst  # a self-loop has one entry: the other goes after all nodes
        other = torch.where(loop, self._num_nodes, self._dst)
        node = torch.stack([self._src, other], 1).view(-1)  # in the order of time
        node, order = node.sort(stable=True)
        self._neighbor = torch.stack([self._dst, self._src], 1).view(-1)[order]
        self._eid = order >> 1
        every = torch.arange(self._num_nodes + 1, device=self._device)
        self._begin = torch.searchsorted(node, every)

    def latest(self, nodes: Tensor, k: int) -> list[Tensor]:
        """Return neighbors and events of the last `k` entries of each node, newest first."""
        place = self._begin[nodes + 1, None] - 1 - torch.arange(k, device=self._device)
        is_there = place >= self._begin[nodes, None]
        place = place.clamp(min=0)
        return [x[place].where(is_there, -1) for x in (self._neighbor, self._eid)]


def rebuild_rows(options: Options, device: str | Device) -> Iterator[Row]:
    """Insert 1,000 events and sample 3,000 queries, at the largest size up to `LOOP_SIZE`."""
    size = max((each for each in options.sizes if each <= LOOP_SIZE), default=0)
    if size == 0:
        return
    options.say(f"sample: beside the device's own rebuild, {size:,} entries")
    stream = PowerLaw.of_sizes([size])
    growing = GrowingGraph(stream.read, device)
    growing.grow_to(size // 2)
    there = growing.graph.device
    csr = SortedCsr(stream.num_nodes, there)
    csr.insert(stream.read(0, growing.graph.num_events))
    ours, sorts = [], []
    for _ in range(2 if options.quick else 20):
        events = growing.read(MICRO)
        nodes = torch.cat([events.src, events.dst, events.src])[:CALL].to(there)
        t = torch.full_like(nodes, growing.graph.num_events + MICRO)
        sample = partial(recent_neighbors, growing.graph, nodes, t, K)
        ours.append(growing.append(events) + seconds_of(sample, growing.device))
        rebuilt = seconds_of(partial(csr.insert, events), growing.device)
        sorts.append(rebuilt + seconds_of(partial(csr.latest, nodes, K), growing.device))
        found = sample()
        for column, expected in zip((found.nodes, found.eid), csr.latest(nodes, K), strict=True):
            if not torch.equal(column, expected):
                raise RuntimeError("the device's own rebuild gives other neighbors")
    name = "update, then sample, over the device's own rebuild"
    params: Params = {"stream": "power law", "entries": size, "device": growing.device, "k": K}
    own_us, sort_us = (1e6 * median(each) for each in (ours, sorts))
    yield Row(name, own_us, "us/step", params, None, sort_us, REBUILD_TARGET)
