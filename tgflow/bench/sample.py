"""How fast the samplers are: whole calls from Python, answers allocated, beside a static CSR."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from tgflow import _core
from tgflow.bench.csr import MERGING, REBUILDING, StaticCsr, check_equal
from tgflow.bench.curves import Curve, Picture, ns_each
from tgflow.bench.grown import POWER_LAW, Grown
from tgflow.bench.options import Options
from tgflow.bench.row import Params, Row
from tgflow.bench.samplers import OWN, contenders, library_rows, share_equal
from tgflow.bench.turns import seconds_of, take_turns
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.sampling import Neighbors, recent_neighbors, uniform_neighbors
from tgflow.testing import reference

K = 10
CALL = 3000
"""Queries a call: a thousand events, three roots each."""
UPDATE = 1000
"""Events between two calls of the update-then-sample loop."""
ROOTS = 600
MAIN_SIZE, LOOP_SIZE = 50_000_000, 10_000_000
"""Entries at which the figures for queries, and for the loop, are to be reached."""
TARGETS = {"recent": 4e6, "uniform": 3e6}
WITHIN = 1 / 1.3
"""What a static CSR may be faster by."""
ONE_HOP_TARGET, TWO_HOP_TARGET = 20e6, 2e6

Queries = Sequence[tuple[Tensor, Tensor]]
Sample = Callable[[Tensor, Tensor], Neighbors]

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
        return [*rows, *reference_rows(events, options)]
    finally:
        _core.set_num_threads(threads)


def growth_rows(options: Options, device: str = "cpu") -> Iterator[Row]:
    """One stream that grows through all sizes; at each of them queries and the loop."""
    grown, csr = Grown(options.sizes, device), StaticCsr()
    for size in options.sizes:
        options.tell(f"sample: {size:,} entries on {device}")
        grown.grow_to(size)
        csr.build(grown.graph.log)
        calls = 4 if options.quick else 100
        params: Params = {"stream": POWER_LAW, "entries": size, "device": device}
        queries = random_queries(grown.num_nodes, grown.num_events, calls)
        binding = size == MAIN_SIZE
        yield from query_rows("cold", grown.graph, csr, queries, params, options, binding)
        ends = end_queries(grown, calls)
        yield from query_rows("cold, ends of events", grown.graph, csr, ends, params, options)
        yield from loop_rows(grown, csr, params, options)


def random_queries(num_nodes: int, stop: int, calls: int) -> Queries:
    """Return calls for random nodes at random times: memory that no earlier query has touched."""
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randint(0, num_nodes, (CALL,), generator=generator),
            torch.randint(0, stop, (CALL,), generator=generator),
        )
        for _ in range(calls)
    ]


def end_queries(grown: Grown, calls: int) -> Queries:
    """Return calls for the ends of random events at their times: as training asks, but shuffled."""
    generator = torch.Generator().manual_seed(2)
    queries = []
    for _ in range(calls):
        eid = torch.randint(0, grown.num_events, (CALL // 2,), generator=generator)
        events = grown.graph.log.gather(eid)
        queries.append((torch.cat([events.src, events.dst]), events.t.repeat(2)))
    return queries


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
    num = sum(len(nodes) for nodes, _ in queries)
    sized = params | {"k": K, "queries": len(queries[0][0])}
    for name, methods in strategies.items():
        for nodes, t in queries[:10]:
            check_equal(name, methods[0](nodes, t), methods[1](nodes, t))
        alone = 0.0
        for threads in (1, 2) if binding else (1,):
            _core.set_num_threads(threads)
            own_s, csr_s = race_of(methods, queries, options.rounds)
            counted = sized | {"threads": threads}
            target = TARGETS[name] if binding and threads == 1 else None
            within = WITHIN if target and name == "recent" else None
            yield Row(
                f"{name}, {what}", num / own_s, "queries/s", counted, target, num / csr_s, within
            )
            if threads == 2:
                yield Row(f"{name}, {what}, two threads over one", alone / own_s, "x", counted, 1.6)
            alone = own_s
    _core.set_num_threads(1)


def race_of(methods: Sequence[Sample], queries: Queries, rounds: int) -> list[float]:
    """Return the seconds each method needs for all queries, in turns call by call."""

    def call(method: Sample) -> Callable[[int], Neighbors]:
        return lambda i: method(*queries[i])

    named = {str(i): call(method) for i, method in enumerate(methods)}
    return [float(each.sum()) for each in take_turns(named, len(queries), rounds).values()]


def loop_rows(grown: Grown, csr: StaticCsr, params: Params, options: Options) -> Iterator[Row]:
    """Insert 1,000 events, sample 3,000 queries; a CSR is built anew, or merges them in."""
    _core.set_num_threads(1)
    ours, rebuilt, merged = (
        1e6 * sorted(seconds)[len(seconds) // 2]
        for seconds in loop_seconds(grown, csr, steps=2 if options.quick else 30)
    )
    sized = params | {"inserted": UPDATE, "queries": CALL, "threads": 1}
    name, least = "update, then sample", 50.0 if params["entries"] == LOOP_SIZE else None
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
        sample = partial(recent_neighbors, grown.graph, nodes, t, K)
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
        own_s, csr_s = race_of(methods, some, options.rounds)
        roots = sum(len(nodes) for nodes, _ in some)
        sized = params | {"k": K, "roots": ROOTS, "threads": 2}
        goal = target if standard else None
        yield Row(f"recent, {what}", roots / own_s, "roots/s", sized, goal, roots / csr_s)


def one_hop(recent: Callable[..., Neighbors], nodes: Tensor, t: Tensor) -> Neighbors:
    """Sample the neighbours of `nodes`."""
    return recent(nodes, t, K)


def two_hops(recent: Callable[..., Neighbors], nodes: Tensor, t: Tensor) -> Neighbors:
    """Sample the neighbours of the neighbours of `nodes`."""
    first = recent(nodes, t, K)
    return recent(first.nodes.view(-1), first.t.view(-1), K)


def peer_rows(name: str, events: EventBatch, options: Options) -> Iterator[Row]:
    """Two hops of 10 for 600 roots, while the stream comes in: each library from its own store.

    `equal` says how many rows of the first hop hold the neighbours that tgflow found.
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
    fast_s = race_of(methods[:1], queries, options.rounds)[0]
    slow_s = race_of(methods[1:], queries, 1)[0]
    params: Params = {"k": K, "threads": 1}
    yield Row("recent vs plain Python", slow_s / fast_s, "x", params, target=20)


def chronological(events: EventBatch, batch_size: int) -> Queries:
    """Return, per batch of events, the roots to sample: sources, destinations, random negatives."""
    generator = torch.Generator().manual_seed(0)
    destinations = torch.unique(events.dst)
    queries = []
    for start in range(0, len(events), batch_size):
        batch = events[start : start + batch_size]
        pick = torch.randint(0, len(destinations), (len(batch),), generator=generator)
        nodes = torch.cat([batch.src, batch.dst, destinations[pick]])
        queries.append((nodes, batch.t.repeat(3)))
    return queries
