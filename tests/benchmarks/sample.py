"""The samplers beside a static CSR, the peers, and the plain-Python reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from benchmarks.beside_csr import check_equal, sample_beside_csr
from benchmarks.device_rebuild import rebuild_rows
from benchmarks.samplers import OWN, contenders, library_rows, share_equal
from tgflow import _core
from tgflow.bench.graph import ROOTS, K, best_seconds, chronological, sample
from tgflow.bench.row import Params, Row
from tgflow.bench.setup import Options, restored_threads, seconds_of
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.sampling import recent_neighbors
from tgflow.testing import reference


def run(options: Options) -> list[Row]:
    """Run `tgflow bench sample`, beside the CSR; then the peers and the reference."""
    rows = sample(options)
    if not options.only_device:
        rows = sample_beside_csr(rows, options)
    with restored_threads():
        for device in options.devices:
            if device != "cpu":
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
    queries = chronological(events)[: 20 if options.quick else None]
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
    queries = chronological(events)[:: 200 if options.quick else 50]
    fast_calls = [partial(recent_neighbors, graph, *each, K) for each in queries]
    slow_calls = [partial(reference.recent_neighbors, slow, *each, K) for each in queries]
    for ours, other in zip(fast_calls, slow_calls, strict=True):
        check_equal("recent", ours(), other())
    _core.set_num_threads(1)
    fast_s, slow_s = best_seconds(fast_calls, options.rounds), best_seconds(slow_calls, 1)
    params: Params = {"k": K, "threads": 1}
    yield Row("recent vs plain Python", slow_s / fast_s, "x", params, target=20)
