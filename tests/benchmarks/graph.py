"""Speed of the store and the samplers against other libraries."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks import peers
from benchmarks.device_rebuild import rebuild_rows
from benchmarks.race import take_turns
from benchmarks.results import skipped
from tgflow import EventBatch, TemporalGraph, _core
from tgflow.cli.benchmarks import graph as bench
from tgflow.cli.benchmarks.graph import ROOTS, K
from tgflow.cli.benchmarks.row import Params, Row
from tgflow.cli.benchmarks.setup import Options, restored_threads, seconds_of
from tgflow.graph import Neighbors
from tgflow.graph.sampling import recent_neighbors

OWN = "tgflow"
PEER_BATCH = 200
HOP_TARGETS = {1: 20e6, 2: 2e6}


def sample(options: Options) -> list[Row]:
    """Run `tgflow bench sample`, and hops in order."""
    rows = bench.sample(options)
    with restored_threads():
        for device in options.devices:
            if device != "cpu":
                rows += rebuild_rows(options, device)
        if options.only_device:
            return rows
        for name, events in options.streams().items():
            rows += ordered_rows(name, events, options)
        return rows


def ordered_rows(name: str, events: EventBatch, options: Options) -> Iterator[Row]:
    """Measure one hop and two for the events of a stream in order."""
    graph = TemporalGraph.from_events(events)
    _core.set_num_threads(2)
    batches = bench.chronological(events)
    params: Params = {"stream": name, "entries": graph.stats().num_entries, "device": "cpu"}
    for hops, every in ((1, 1), (2, 4)):
        some = batches[:8:every] if options.quick else batches[::every]
        calls = [partial(recent_hops, graph, *each, hops) for each in some]
        speed = sum(len(nodes) for nodes, _ in some) / bench.best_seconds(calls, options.rounds)
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
    queries = bench.chronological(events)[: 20 if options.quick else None]
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
