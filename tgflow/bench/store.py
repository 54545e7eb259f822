"""How fast the block store takes events as it grows, and what they cost to hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from tgflow import _core
from tgflow.bench.csr import MERGING, REBUILDING, StaticCsr, check_equal
from tgflow.bench.curves import Curve, Picture, ns_each
from tgflow.bench.grown import BULK, POWER_LAW, Grown
from tgflow.bench.options import Options
from tgflow.bench.queries import K, random_queries
from tgflow.bench.row import Params, Row
from tgflow.bench.samplers import MeasuredSampler, contenders, library_rows
from tgflow.bench.tiers import tier_rows
from tgflow.bench.turns import seconds_of, take_turns
from tgflow.cuda.device import Device
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.sampling import recent_neighbors

MICRO = 1000
"""Events a micro-batch."""
MICRO_BATCHES = 300
PEER_BATCH = 200
CSR_ENTRY_BYTES = 16
CSR_OFFSET_BYTES = 4
BULK_TARGETS = {"cpu": 4e6, "cuda": 100e6}
MICRO_TARGET = 1.5e6
BYTES_TARGET, SLACK_TARGET = 24.0, 0.10
MAIN_SIZE = 50_000_000
"""The size that the figures for memory are to be reached at."""

PICTURES = (
    Picture(
        "Cost of an event, ns",
        "inserted while the graph grows, one core",
        (
            Curve("batches of 1 M", "insert, bulk", 1, show=ns_each),
            Curve("batches of 1,000", "insert, micro-batches", 2, REBUILDING, show=ns_each),
            Curve("1 M, CSR rebuilt", "insert, bulk", 1, baseline=True, show=ns_each),
            Curve(
                "1,000, CSR rebuilt",
                "insert, micro-batches",
                2,
                having=REBUILDING,
                baseline=True,
                show=ns_each,
            ),
            Curve(
                "1,000, CSR merged",
                "insert, micro-batches",
                3,
                having=MERGING,
                baseline=True,
                show=ns_each,
            ),
        ),
        log_y=True,
    ),
    Picture(
        "Bytes per entry",
        "everything the store holds, over the entries in it",
        (
            Curve("tgflow", "memory", 1),
            Curve("static CSR", "memory", 1, baseline=True),
        ),
    ),
)


def run(options: Options) -> list[Row]:
    """Measure inserts and memory, both directions, on one core: made streams, then the files."""
    threads = _core.num_threads()
    _core.set_num_threads(1)
    try:
        rows = [row for device in options.devices for row in growth_rows(options, device)]
        rows += [row for device in options.devices for row in tier_rows(options, device)]
        for name, events in options.streams().items():
            options.tell(f"store: {name}")
            rows += stream_rows(name, events, options)
        return rows
    finally:
        _core.set_num_threads(threads)


def growth_rows(options: Options, device: str | Device = "cpu") -> Iterator[Row]:
    """One stream that grows through all sizes; at each of them inserts, rebuilds and memory."""
    grown, csr = Grown(options.sizes, device), StaticCsr()
    build = partial(csr.build, grown.graph.log)
    rounds = 1 if options.quick else 3
    for size in options.sizes:
        options.tell(f"store: {size:,} entries on {grown.device}")
        costs = grown.grow_to(size)
        build()
        check_csr(grown.graph, csr, grown.num_events)
        params: Params = {
            "stream": POWER_LAW,
            "entries": size,
            "nodes": grown.num_nodes,
            "device": grown.device,
            "threads": 1,
        }
        batch = min(BULK, size // 2)
        rebuild_s = min(seconds_of(build) for _ in range(rounds))
        last = min(costs[-5:], default=float("nan"))
        yield Row(
            "insert, bulk",
            1e9 / last,
            "events/s",
            params | {"batch": batch},
            BULK_TARGETS[grown.device],
            batch / rebuild_s,
        )
        yield from micro_rows(grown, csr, params, rebuild_s, options)
        yield from memory_rows(grown.graph, params, size == MAIN_SIZE)
    grown.graph.compact()
    stats = grown.graph.stats()
    yield Row("memory, compacted", stats.bytes / max(stats.num_entries, 1), "bytes/entry", params)


def check_csr(graph: TemporalGraph, csr: StaticCsr, stop: int) -> None:
    """Raise RuntimeError unless graph and CSR answer queries before time `stop` alike."""
    for nodes, t in random_queries(graph.num_nodes, stop, calls=1):
        found = recent_neighbors(graph, nodes.to(graph.device), t.to(graph.device), K)
        check_equal("static CSR", found, csr.recent(nodes, t, K))


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
    grown: Grown, csr: StaticCsr, params: Params, rebuild_s: float, options: Options
) -> Iterator[Row]:
    """Batches of 1,000, one after the other, beside a merge into the CSR and building it anew."""
    batches = 20 if options.quick else MICRO_BATCHES
    ours: list[float] = []
    merge: list[float] = []
    for _ in range(batches):
        events = grown.read(MICRO)
        ours.append(grown.append(events))
        if len(merge) < batches // 10:
            merge.append(seconds_of(partial(csr.insert, events)))
    seconds, merge_s = torch.tensor(ours, dtype=torch.float64), sorted(merge)[len(merge) // 2]
    params = params | {"batch": MICRO}
    speed = MICRO / float(seconds.mean())
    for against, other_s in ((REBUILDING, rebuild_s), (MERGING, merge_s)):
        compared = params | against
        name = "insert, micro-batches"
        yield Row(name, speed, "events/s", compared, MICRO_TARGET, MICRO / other_s)
    yield from quantile_rows("insert, micro-batches", seconds, params)


def quantile_rows(name: str, seconds: Tensor, params: Params) -> Iterator[Row]:
    """The median call and the slowest of a hundred."""
    limit = 1e3 if params.get("device") == "cuda" else None
    for label, share, target in (("p50", 0.5, None), ("p99", 0.99, limit)):
        yield Row(f"{name}, {label}", float(seconds.quantile(share)) * 1e6, "us", params, target)


def stream_rows(name: str, events: EventBatch, options: Options) -> Iterator[Row]:
    """One stream whole: in bulk, in micro-batches, its memory, and what the peers need for it."""
    csr = StaticCsr()
    whole = TemporalGraph.from_events(events)
    csr.build(whole.log)
    check_csr(whole, csr, int(events.t[-1]) + 1)
    params: Params = {"stream": name, "entries": len(csr), "device": "cpu", "threads": 1}
    for what, batch, target in (("bulk", BULK, None), ("micro-batches", MICRO, MICRO_TARGET)):
        seconds, graph = insert_all(events, batch, options.rounds)
        rebuild_s = min(seconds_of(partial(csr.build, graph.log)) for _ in range(2))
        speed = len(events) / float(seconds.sum())
        rebuilt = min(batch, len(events)) / rebuild_s
        sized = params | {"batch": min(batch, len(events))}
        compared = sized if batch == BULK else sized | REBUILDING
        yield Row(f"insert, {what}", speed, "events/s", compared, target, rebuilt)
    yield from quantile_rows("insert, micro-batches", seconds, sized)
    yield from memory_rows(graph, params, binding=False)
    yield from peer_rows(name, events, options)


def insert_all(events: EventBatch, size: int, rounds: int) -> tuple[Tensor, TemporalGraph]:
    """Insert a stream in batches of `size`; returns the best seconds of each, and a graph."""
    batches = [events[at : at + size] for at in range(0, len(events), size)]
    tries = []
    for _ in range(rounds):
        graph = TemporalGraph()
        tries.append([seconds_of(partial(graph.append, batch)) for batch in batches])
    return torch.tensor(tries, dtype=torch.float64).amin(0), graph


def peer_rows(name: str, events: EventBatch, options: Options) -> Iterator[Row]:
    """Batches of 200 into each library's own store of recent neighbors, in turns."""
    events = events[: PEER_BATCH * (20 if options.quick else 500)]
    batches = [events[at : at + PEER_BATCH] for at in range(0, len(events), PEER_BATCH)]
    present, absent = contenders(int(torch.maximum(events.src, events.dst).max()) + 1, K)

    def insert(sampler: MeasuredSampler) -> Callable[[int], None]:
        return lambda i: sampler.insert(batches[i])

    seconds = take_turns(
        {library: insert(sampler) for library, sampler in present.items()}, len(batches)
    )
    speeds = {library: len(events) / float(each.sum()) for library, each in seconds.items()}
    params: Params = {"stream": name, "events": len(events), "batch": PEER_BATCH, "threads": 1}
    yield from library_rows("insert, beside the peers", "events/s", speeds, absent, params)
