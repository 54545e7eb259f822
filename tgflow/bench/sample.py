"""How fast the samplers are: whole calls from Python, answers allocated, best of several rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from tgflow import _core
from tgflow.bench import made
from tgflow.bench.row import Row
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.sampling import recent_neighbors, uniform_neighbors
from tgflow.testing import reference

K = 10
Queries = Sequence[tuple[Tensor, Tensor]]
Call = Callable[[Tensor, Tensor], object]


def run(data: Path | None = None, rounds: int = 5) -> list[Row]:
    """Measure the samplers.

    Args:
        data: `wikipedia.csv(.gz)`; None for a made stream of its shape.
        rounds: How often each figure is measured; the best counts.
    """
    threads = _core.num_threads()
    try:
        return [
            *wikipedia_rows(data, rounds),
            *cold_rows(rounds),
            *reference_rows(data),
        ]
    finally:
        _core.set_num_threads(threads)


def wikipedia_rows(data: Path | None, rounds: int) -> list[Row]:
    """Chronological batches of 200 events, three roots an event, one and two hops."""
    events = made.wikipedia(data)
    graph = TemporalGraph.from_events(events)
    queries = chronological(events, batch_size=200)
    num_roots = sum(len(nodes) for nodes, _ in queries)

    def one_hop(nodes: Tensor, t: Tensor) -> None:
        recent_neighbors(graph, nodes, t, K)

    def two_hops(nodes: Tensor, t: Tensor) -> None:
        first = recent_neighbors(graph, nodes, t, K)
        recent_neighbors(graph, first.nodes.view(-1), first.t.view(-1), K)

    _core.set_num_threads(2)
    stream = "wikipedia" if data else "wikipedia-shaped"
    params: dict[str, str | int | float] = {"stream": stream, "k": K, "roots": 600, "threads": 2}
    one = num_roots / best_seconds(one_hop, queries, rounds)
    two = (
        num_roots / best_seconds(two_hops, queries[::4], rounds) * len(queries[::4]) / len(queries)
    )
    return [
        Row("recent, 1 hop", one, "roots/s", params, baseline=20e6),
        Row("recent, 2 hops", two, "roots/s", params, baseline=2e6),
    ]


def cold_rows(rounds: int) -> list[Row]:
    """Random nodes at random times in a graph much larger than the caches."""
    num_nodes, num_events, size = 500_000, 5_000_000, 1800
    events = made.power_law(num_events, num_nodes)
    graph = TemporalGraph()
    for start in range(0, num_events, 100_000):
        graph.append(events[start : start + 100_000])
    generator = torch.Generator().manual_seed(1)
    queries = [
        (
            torch.randint(0, num_nodes, (size,), generator=generator),
            torch.randint(0, num_events, (size,), generator=generator),
        )
        for _ in range(150)
    ]
    calls: dict[str, tuple[Call, float]] = {
        "recent": (lambda nodes, t: recent_neighbors(graph, nodes, t, K), 6e6),
        "uniform": (lambda nodes, t: uniform_neighbors(graph, nodes, t, K, key=1), 3e6),
    }
    rows: list[Row] = []
    for name, (call, baseline) in calls.items():
        for threads in (1, 2):
            _core.set_num_threads(threads)
            speed = len(queries) * size / best_seconds(call, queries, rounds)
            params: dict[str, str | int | float] = {
                "entries": graph.stats().num_entries,
                "k": K,
                "queries": size,
                "threads": threads,
            }
            goal = baseline if threads == 1 else 1.6 * rows[-1].value
            rows.append(Row(f"{name}, cold", speed, "queries/s", params, goal))
    return rows


def reference_rows(data: Path | None) -> list[Row]:
    """Against the plain-Python reference on one thread; the answers are compared too."""
    events = made.wikipedia(data)
    graph, slow = TemporalGraph.from_events(events), reference.ReferenceGraph(events)
    queries = chronological(events, batch_size=200)[::50]
    for nodes, t in queries:
        got, expected = (
            recent_neighbors(graph, nodes, t, K),
            reference.recent_neighbors(slow, nodes, t, K),
        )
        if not torch.equal(got.eid, expected.eid) or not torch.equal(got.nodes, expected.nodes):
            raise RuntimeError("the sampler and its reference disagree")
    _core.set_num_threads(1)
    fast_s = best_seconds(lambda nodes, t: recent_neighbors(graph, nodes, t, K), queries, 5)
    slow_s = best_seconds(
        lambda nodes, t: reference.recent_neighbors(slow, nodes, t, K), queries, 1
    )
    return [
        Row("recent vs plain Python", slow_s / fast_s, "x", {"k": K, "threads": 1}, baseline=20)
    ]


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


def best_seconds(call: Call, queries: Queries, rounds: int) -> float:
    """Return the least time, of `rounds` tries, in which `call` answered all `queries`."""
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        for nodes, t in queries:
            call(nodes, t)
        best = min(best, time.perf_counter() - started)
    return best
