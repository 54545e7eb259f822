"""How fast the samplers are: whole calls from Python, answers allocated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from tgflow import _core
from tgflow.bench.baseline import Baseline, NewBaseline, check_equal, open_baseline
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
from tgflow.bench.turns import restored_threads, seconds_of, take_turns
from tgflow.cuda.device import Device
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.sampling import Hops, Neighbors, recent_neighbors, sample_hops, uniform_neighbors

LOOP = "update, then sample"
UPDATE = 1000
"""Events between two calls of the update-then-sample loop."""
GPU_CALL = 1_000_000
"""Queries a call on a GPU."""
MAIN_SIZE, LOOP_SIZE = 50_000_000, 10_000_000
"""Entries at which the figures for queries, and for the loop, are to be reached."""
TARGETS = {"cpu": {"recent": 4e6, "uniform": 3e6}, "cuda": {"recent": 300e6, "uniform": 150e6}}
LOOP_TARGETS = {"cpu": 50.0, "cuda": 21.0}
"""How many times faster than with a CSR that is rebuilt."""
HOPS_TARGETS = {"cuda": 150.0}
WITHIN = 1 / 1.3
"""What a static CSR may be faster by."""
ONE_HOP_TARGET, TWO_HOP_TARGET = 20e6, 2e6


def run(options: Options, new_baseline: NewBaseline = None) -> list[Row]:
    """Measure the samplers on graphs of rising size, then on the files or a made stream."""
    with restored_threads():
        baseline = open_baseline(new_baseline, options)
        rows = [row for device in options.devices for row in growth_rows(options, device, baseline)]
        for name, events in {} if options.only_device else options.streams().items():
            options.say(f"sample: {name}")
            rows += stream_rows(name, events, options, baseline)
        name, events = options.wikipedia()
        return rows + [row for device in options.devices for row in hops_rows(name, events, device)]


def growth_rows(
    options: Options, device: str | Device = "cpu", baseline: Baseline | None = None
) -> Iterator[Row]:
    """One stream that grows through all sizes; at each of them queries and the loop."""
    grown = Grown(options.sizes, device)
    call = CALL if grown.device == "cpu" or options.quick else GPU_CALL
    calls = 4 if options.quick else 300_000 // call or 8
    for size in options.sizes:
        options.say(f"sample: {size:,} entries on {grown.device}")
        grown.grow_to(size)
        if baseline is not None:
            baseline.build(grown.graph.log)
        params: Params = {
            "stream": POWER_LAW,
            "entries": size,
            "nodes": grown.num_nodes,
            "device": grown.device,
        }
        queries = random_queries(grown.num_nodes, grown.num_events, calls, call)
        binding = size == MAIN_SIZE
        yield from query_rows("cold", grown.graph, baseline, queries, params, options, binding)
        ends = end_queries(grown, calls, call)
        yield from query_rows("cold, ends of events", grown.graph, baseline, ends, params, options)
        yield from loop_rows(grown, baseline, params, options)


def query_rows(
    what: str,
    graph: TemporalGraph,
    baseline: Baseline | None,
    queries: Queries,
    params: Params,
    options: Options,
    binding: bool = False,
) -> Iterator[Row]:
    """Queries a second of each strategy beside the baseline, on one thread, and on two.

    The answers are compared first. `binding` says that the figures are to be reached here.
    """
    device = graph.device.type
    own_queries = on(graph.device, queries)
    num = sum(len(nodes) for nodes, _ in queries)
    sized = params | {"k": K, "queries": len(queries[0][0])}
    for strategy, own, other in strategies(graph, baseline):
        name, entries, alone = f"{strategy}, {what}", [(own, own_queries)], 0.0
        if other is not None:
            entries.append((other, queries))
            for ours, theirs in list(zip(own_queries, queries, strict=True))[:10]:
                check_equal(strategy, own(*ours), other(*theirs))
        for threads in (1, 2) if binding and device == "cpu" else (1,):
            _core.set_num_threads(threads)
            own_s, *other_s = race_of(entries, options.rounds, device)
            counted = sized | {"threads": threads}
            target = TARGETS[device][strategy] if binding and threads == 1 else None
            within = WITHIN if target and strategy == "recent" else None
            beside = num / other_s[0] if other_s else None
            yield Row(name, num / own_s, "queries/s", counted, target, beside, within)
            if threads == 2:
                yield Row(f"{name}, two threads over one", alone / own_s, "x", counted, 1.6)
            alone = own_s
    _core.set_num_threads(1)


def strategies(
    graph: TemporalGraph, baseline: Baseline | None
) -> Iterator[tuple[str, Sample, Sample | None]]:
    """Yield each strategy's name, and what samples by it: the graph, and the baseline if any."""
    other_recent = None if baseline is None else partial(baseline.recent, k=K)
    yield "recent", partial(recent_neighbors, graph, k=K), other_recent
    other_uniform = None if baseline is None else partial(baseline.uniform, k=K, key=1)
    yield "uniform", partial(uniform_neighbors, graph, k=K, key=1), other_uniform


def loop_rows(
    grown: Grown, baseline: Baseline | None, params: Params, options: Options
) -> Iterator[Row]:
    """Insert 1,000 events, sample 3,000 queries; a baseline is rebuilt, or merges them in."""
    _core.set_num_threads(1)
    ours, rebuilt, merged = (
        1e6 * sorted(seconds)[len(seconds) // 2] if seconds else None
        for seconds in loop_seconds(grown, baseline, steps=2 if options.quick else 30)
    )
    assert ours is not None
    sized = params | {"inserted": UPDATE, "queries": CALL, "threads": 1}
    least = LOOP_TARGETS[grown.device] if params["entries"] == LOOP_SIZE else None
    yield Row(LOOP, ours, "us/step", sized, None, rebuilt, least)
    if merged is not None:
        yield Row(f"{LOOP} beside a merge", ours, "us/step", sized, None, merged)


def loop_seconds(
    grown: Grown, baseline: Baseline | None, steps: int, rebuilds: int = 3
) -> tuple[list[float], list[float], list[float]]:
    """Return seconds of each step: tgflow's, and of a baseline rebuilt (the first few), merged."""
    generator = torch.Generator().manual_seed(3)
    ours: list[float] = []
    rebuilt: list[float] = []
    merged: list[float] = []
    for step in range(steps):
        events = grown.read(UPDATE)
        negatives = torch.randint(0, grown.num_nodes, (CALL - 2 * UPDATE,), generator=generator)
        nodes = torch.cat([events.src, events.dst, negatives])
        t = torch.full((CALL,), grown.num_events + UPDATE)
        own_nodes, own_t = nodes.to(grown.graph.device), t.to(grown.graph.device)
        sample = partial(recent_neighbors, grown.graph, own_nodes, own_t, K)
        ours.append(grown.append(events) + seconds_of(sample, grown.device))
        if baseline is None:
            continue
        sample_other = partial(baseline.recent, nodes, t, K)
        merged.append(seconds_of(partial(baseline.insert, events)) + seconds_of(sample_other))
        check_equal(LOOP, sample(), sample_other())
        if step < rebuilds:
            build = partial(baseline.build, grown.graph.log)
            rebuilt.append(seconds_of(build) + seconds_of(sample_other))
    return ours, rebuilt, merged


def stream_rows(
    name: str, events: EventBatch, options: Options, baseline: Baseline | None = None
) -> Iterator[Row]:
    """A whole stream: random queries, and its events in order, one hop and two."""
    graph = TemporalGraph.from_events(events)
    if baseline is not None:
        baseline.build(graph.log)
    num_entries = graph.stats().num_entries
    params: Params = {"stream": name, "entries": num_entries, "device": "cpu"}
    _core.set_num_threads(1)
    span = int(events.t[-1] - events.t[0]) + 1 if len(events) else 1
    queries = [
        (nodes, t * span // max(len(events), 1) + events.t[0])
        for nodes, t in random_queries(graph.num_nodes, len(events), 4 if options.quick else 100)
    ]
    yield from query_rows("random", graph, baseline, queries, params, options)
    _core.set_num_threads(2)
    standard = name.startswith("wikipedia")
    chosen = chronological(events, ROOTS // 3)
    methods: list[Callable[..., Neighbors]] = [partial(recent_neighbors, graph)]
    methods += [] if baseline is None else [baseline.recent]
    for what, hops, every, target in (
        ("1 hop", one_hop, 1, ONE_HOP_TARGET),
        ("2 hops", two_hops, 4, TWO_HOP_TARGET),
    ):
        some = chosen[:8:every] if options.quick else chosen[::every]
        entries = [(partial(hops, method), some) for method in methods]
        own, *others = (method(*some[-1]) for method, _ in entries)
        for other in others:
            check_equal(what, own, other)
        own_s, *other_s = race_of(entries, options.rounds)
        roots = sum(len(nodes) for nodes, _ in some)
        sized = params | {"k": K, "roots": ROOTS, "threads": 2}
        beside = roots / other_s[0] if other_s else None
        goal = target if standard else None
        yield Row(f"recent, {what}", roots / own_s, "roots/s", sized, goal, beside)


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

    seconds = take_turns({"sample": call}, len(queries), 3, kind)["sample"]
    params: Params = {"stream": name, "k": "10x10", "roots": ROOTS, "device": kind}
    target = HOPS_TARGETS.get(kind)
    yield Row("sample_hops, two hops", 1e6 * float(seconds.median()), "us", params, target)
