"""The samplers beside a static CSR, the bus of a GPU, the peers, and the plain-Python reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from benchmarks.device_rebuild import rebuild_rows
from benchmarks.floor import floor_rows
from benchmarks.samplers import OWN, contenders, library_rows, share_equal
from benchmarks.static_csr import static_csr
from tgflow import _core
from tgflow.bench import sample
from tgflow.bench.baseline import check_equal
from tgflow.bench.options import Options
from tgflow.bench.queries import ROOTS, K, Sample, chronological, race_of
from tgflow.bench.row import Params, Row
from tgflow.bench.turns import restored_threads, seconds_of
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.sampling import recent_neighbors
from tgflow.testing import reference


def run(options: Options) -> list[Row]:
    """Measure what `tgflow bench sample` does, with the CSR; then floor, peers and reference."""
    rows = sample.run(options, None if options.only_device else static_csr())
    with restored_threads():
        for device in options.devices:
            if device != "cpu":
                rows += floor_rows(options, device)
                rows += rebuild_rows(options, device)
        if options.only_device:
            return rows
        name, events = options.wikipedia()
        options.say(f"sample: {name}, beside the peers")
        return [*rows, *peer_rows(name, events, options), *reference_rows(events, options)]


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
