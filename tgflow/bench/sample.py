"""How fast the samplers are: whole calls from Python, answers allocated, beside a static CSR."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from tgflow import _core
from tgflow.bench.csr import MERGING, REBUILDING, StaticCsr, check_equal
from tgflow.bench.curves import Curve, Picture, ns_each
from tgflow.bench.floor import floor_seconds
from tgflow.bench.grown import POWER_LAW, Grown
from tgflow.bench.options import Options
from tgflow.bench.queries import (
    CALL,
    ROOTS,
    K,
    Queries,
    Sample,
    chronological,
    end_queries,
    on,
    race_of,
    random_queries,
)
from tgflow.bench.row import Params, Row
from tgflow.bench.samplers import OWN, contenders, library_rows, share_equal
from tgflow.bench.turns import seconds_of, take_turns
from tgflow.cuda.device import Device
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.sampling import Hops, Neighbors, recent_neighbors, sample_hops, uniform_neighbors
from tgflow.testing import reference

UPDATE = 1000
"""Events between two calls of the update-then-sample loop."""
GPU_CALL = 1_000_000
"""Queries a call on a GPU."""
MAIN_SIZE, LOOP_SIZE = 50_000_000, 10_000_000
"""Entries at which the figures for queries, and for the loop, are to be reached."""
TARGETS = {"cpu": {"recent": 4e6, "uniform": 3e6}, "cuda": {"recent": 300e6, "uniform": 150e6}}
LOOP_TARGETS = {"cpu": 50.0, "cuda": 21.0}
"""How many times faster than with a CSR that is built anew."""
HOPS_TARGETS = {"cuda": 150.0}
WITHIN = 1 / 1.3
"""What a static CSR may be faster by."""
ONE_HOP_TARGET, TWO_HOP_TARGET = 20e6, 2e6

PICTURES = (
    Picture(
        "Cost of a query, ns",
        "k = 10, random nodes at random times, one core",
        (
            Curve("recent", "recent, cold", 1, {"threads": 1}, show=ns_each),
            Curve(
                "recent, static CSR", "recent, cold", 1, {"threads": 1}, baseline=True, show=ns_each
            ),
            Curve("uniform", "uniform, cold", 2, {"threads": 1}, show=ns_each),
            Curve(
                "uniform, static CSR",
                "uniform, cold",
                2,
                {"threads": 1},
                baseline=True,
                show=ns_each,
            ),
        ),
    ),
    Picture(
        "Insert 1,000 events, then sample 3,000, us",
        "one step of the loop, one core",
        (
            Curve("tgflow", "update, then sample", 1, REBUILDING),
            Curve("CSR rebuilt", "update, then sample", 2, REBUILDING, baseline=True),
            Curve("CSR merged", "update, then sample", 3, MERGING, baseline=True),
        ),
        log_y=True,
    ),
)


def run(options: Options) -> list[Row]:
    """Measure the samplers on graphs of rising size, then on the files or a made stream."""
    threads = _core.num_threads()
    try:
        rows = [row for device in options.devices for row in growth_rows(options, device)]
        for name, events in options.streams().items():
            options.tell(f"sample: {name}")
            rows += stream_rows(name, events, options)
        name, events = options.wikipedia()
        options.tell(f"sample: {name}, beside the peers")
        rows += peer_rows(name, events, options)
        rows += [row for device in options.devices for row in hops_rows(name, events, device)]
        return [*rows, *reference_rows(events, options)]
    finally:
        _core.set_num_threads(threads)


def growth_rows(options: Options, device: str | Device = "cpu") -> Iterator[Row]:
    """One stream that grows through all sizes; at each of them queries and the loop."""
    grown, csr = Grown(options.sizes, device), StaticCsr()
    call = CALL if grown.device == "cpu" or options.quick else GPU_CALL
    calls = 4 if options.quick else 300_000 // call or 8
    for size in options.sizes:
        options.tell(f"sample: {size:,} entries on {grown.device}")
        grown.grow_to(size)
        csr.build(grown.graph.log)
        params: Params = {
            "stream": POWER_LAW,
            "entries": size,
            "nodes": grown.num_nodes,
            "device": grown.device,
        }
        queries = random_queries(grown.num_nodes, grown.num_events, calls, call)
        binding = size == MAIN_SIZE
        yield from query_rows("cold", grown.graph, csr, queries, params, options, binding)
        ends = end_queries(grown, calls, call)
        yield from query_rows("cold, ends of events", grown.graph, csr, ends, params, options)
        yield from loop_rows(grown, csr, params, options)


def query_rows(
    what: str,
    graph: TemporalGraph,
    csr: StaticCsr,
    queries: Queries,
    params: Params,
    options: Options,
    binding: bool = False,
) -> Iterator[Row]:
    """Queries a second of each strategy beside the CSR, on one thread, and on two.

    The answers are compared first. `binding` says that the figures are to be reached here.
    """
    device = graph.device.type
    strategies: dict[str, tuple[Sample, Sample]] = {
        "recent": (
            lambda nodes, t: recent_neighbors(graph, nodes, t, K),
            lambda nodes, t: csr.recent(nodes, t, K),
        ),
        "uniform": (
            lambda nodes, t: uniform_neighbors(graph, nodes, t, K, key=1),
            lambda nodes, t: csr.uniform(nodes, t, K, key=1),
        ),
    }
    own_queries = on(graph.device, queries)
    num = sum(len(nodes) for nodes, _ in queries)
    sized = params | {"k": K, "queries": len(queries[0][0])}
    for strategy, methods in strategies.items():
        name = f"{strategy}, {what}"
        for own, other in list(zip(own_queries, queries, strict=True))[:10]:
            check_equal(strategy, methods[0](*own), methods[1](*other))
        entries = list(zip(methods, (own_queries, queries), strict=True))
        alone = 0.0
        for threads in (1, 2) if binding and device == "cpu" else (1,):
            _core.set_num_threads(threads)
            own_s, csr_s = race_of(entries, options.rounds, device)
            counted = sized | {"threads": threads}
            target = TARGETS[device][strategy] if binding and threads == 1 else None
            within = WITHIN if target and strategy == "recent" else None
            yield Row(name, num / own_s, "queries/s", counted, target, num / csr_s, within)
            if threads == 2:
                yield Row(f"{name}, two threads over one", alone / own_s, "x", counted, 1.6)
            alone = own_s
        if device != "cpu":
            filled = sum(int(methods[0](*own).count.sum()) for own in own_queries)
            least_s = floor_seconds(strategy, filled, num, device)
            yield Row(f"{name}, share of the bandwidth floor", least_s / own_s, "", sized)
    _core.set_num_threads(1)


def loop_rows(grown: Grown, csr: StaticCsr, params: Params, options: Options) -> Iterator[Row]:
    """Insert 1,000 events, sample 3,000 queries; a CSR is built anew, or merges them in."""
    _core.set_num_threads(1)
    ours, rebuilt, merged = (
        1e6 * sorted(seconds)[len(seconds) // 2]
        for seconds in loop_seconds(grown, csr, steps=2 if options.quick else 30)
    )
    sized = params | {"inserted": UPDATE, "queries": CALL, "threads": 1}
    least = LOOP_TARGETS[grown.device] if params["entries"] == LOOP_SIZE else None
    name = "update, then sample"
    yield Row(name, ours, "us/step", sized | REBUILDING, None, rebuilt, least)
    yield Row(name, ours, "us/step", sized | MERGING, None, merged)


def loop_seconds(
    grown: Grown, csr: StaticCsr, steps: int, rebuilds: int = 3
) -> tuple[list[float], list[float], list[float]]:
    """Return seconds of each step: tgflow's, and those of a CSR rebuilt (the first few), merged."""
    generator = torch.Generator().manual_seed(3)
    ours, rebuilt, merged = [], [], []
    for step in range(steps):
        events = grown.read(UPDATE)
        negatives = torch.randint(0, grown.num_nodes, (CALL - 2 * UPDATE,), generator=generator)
        nodes = torch.cat([events.src, events.dst, negatives])
        t = torch.full((CALL,), grown.num_events + UPDATE)
        own_nodes, own_t = nodes.to(grown.graph.device), t.to(grown.graph.device)
        sample = partial(recent_neighbors, grown.graph, own_nodes, own_t, K)
        sample_csr = partial(csr.recent, nodes, t, K)
        ours.append(grown.append(events) + seconds_of(sample, grown.device))
        merged.append(seconds_of(partial(csr.insert, events)) + seconds_of(sample_csr))
        check_equal("update, then sample", sample(), sample_csr())
        if step < rebuilds:
            build = partial(csr.build, grown.graph.log)
            rebuilt.append(seconds_of(build) + seconds_of(sample_csr))
    return ours, rebuilt, merged


def stream_rows(name: str, events: EventBatch, options: Options) -> Iterator[Row]:
    """A whole stream: random queries, and its events in order, one hop and two."""
    graph, csr = TemporalGraph.from_events(events), StaticCsr()
    csr.build(graph.log)
    params: Params = {"stream": name, "entries": len(csr), "device": "cpu"}
    _core.set_num_threads(1)
    span = int(events.t[-1] - events.t[0]) + 1 if len(events) else 1
    queries = [
        (nodes, t * span // max(len(events), 1) + events.t[0])
        for nodes, t in random_queries(graph.num_nodes, len(events), 4 if options.quick else 100)
    ]
    yield from query_rows("random", graph, csr, queries, params, options)
    _core.set_num_threads(2)
    standard = name.startswith("wikipedia")
    chosen = chronological(events, ROOTS // 3)
    for what, hops, every, target in (
        ("1 hop", one_hop, 1, ONE_HOP_TARGET),
        ("2 hops", two_hops, 4, TWO_HOP_TARGET),
    ):
        some = chosen[:8:every] if options.quick else chosen[::every]
        methods = [partial(hops, partial(recent_neighbors, graph)), partial(hops, csr.recent)]
        check_equal(what, *(method(*some[-1]) for method in methods))
        own_s, csr_s = race_of([(method, some) for method in methods], options.rounds)
        roots = sum(len(nodes) for nodes, _ in some)
        sized = params | {"k": K, "roots": ROOTS, "threads": 2}
        goal = target if standard else None
        yield Row(f"recent, {what}", roots / own_s, "roots/s", sized, goal, roots / csr_s)


def one_hop(recent: Callable[..., Neighbors], nodes: Tensor, t: Tensor) -> Neighbors:
    """Sample the neighbors of `nodes`."""
    return recent(nodes, t, K)


def two_hops(recent: Callable[..., Neighbors], nodes: Tensor, t: Tensor) -> Neighbors:
    """Sample the neighbors of the neighbors of `nodes`."""
    first = recent(nodes, t, K)
    return recent(first.nodes.view(-1), first.t.view(-1), K)


def hops_rows(name: str, events: EventBatch, device: str | Device = "cpu") -> Iterator[Row]:
    """Two hops of 10 for the 600 roots of late batches, as one call gives them to a model."""
    _core.set_num_threads(2)
    graph = TemporalGraph.from_events(events, device=device)
    queries = on(graph.device, chronological(events, ROOTS // 3)[-50:-1])
    kind = graph.device.type

    def call(i: int) -> Hops:
        return sample_hops(graph, *queries[i], [K, K])

    seconds = take_turns({OWN: call}, len(queries), 3, kind)[OWN]
    params: Params = {"stream": name, "k": "10x10", "roots": ROOTS, "device": kind}
    target = HOPS_TARGETS.get(kind)
    yield Row("sample_hops, two hops", 1e6 * float(seconds.median()), "us", params, target)


def peer_rows(name: str, events: EventBatch, options: Options) -> Iterator[Row]:
    """Two hops of 10 for 600 roots, while the stream comes in: each library from its own store.

    `equal` says how many rows of the first hop hold the neighbors that tgflow found.
    """
    _core.set_num_threads(2)
    queries = chronological(events, ROOTS // 3)[: 20 if options.quick else None]
    present, absent = contenders(int(torch.maximum(events.src, events.dst).max()) + 1, K)
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
    for row in library_rows("two hops, beside the peers", "us", medians, absent, params, 1.5):
        shares = equal.get(str(row.params["library"]), [])
        share: Params = {"equal": round(sum(shares) / len(shares), 3)} if shares else {}
        yield replace(row, params=row.params | share)


def reference_rows(events: EventBatch, options: Options) -> Iterator[Row]:
    """Against the plain-Python reference on one thread; the answers are compared too."""
    graph, slow = TemporalGraph.from_events(events), reference.ReferenceGraph(events)
    queries = chronological(events, ROOTS // 3)[:: 200 if options.quick else 50]
    methods: list[Sample] = [
        lambda nodes, t: recent_neighbors(graph, nodes, t, K),
        lambda nodes, t: reference.recent_neighbors(slow, nodes, t, K),
    ]
    for nodes, t in queries:
        check_equal("recent", *(method(nodes, t) for method in methods))
    _core.set_num_threads(1)
    fast_s = race_of([(methods[0], queries)], options.rounds)[0]
    slow_s = race_of([(methods[1], queries)], 1)[0]
    params: Params = {"k": K, "threads": 1}
    yield Row("recent vs plain Python", slow_s / fast_s, "x", params, target=20)
