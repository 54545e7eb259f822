"""The block store beside a static CSR, and beside the peers' own stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from benchmarks.beside_csr import store_beside_csr
from benchmarks.race import take_turns
from benchmarks.samplers import MeasuredSampler, contenders, library_rows
from tgflow import _core
from tgflow.bench.graph import K, store
from tgflow.bench.row import Params, Row
from tgflow.bench.setup import Options, restored_threads
from tgflow.events import EventBatch

PEER_BATCH = 200


def run(options: Options) -> list[Row]:
    """Run `tgflow bench store`, beside the CSR; then the peers."""
    rows = store(options)
    if options.only_device:
        return rows
    rows = store_beside_csr(rows, options)
    with restored_threads():
        _core.set_num_threads(1)
        for name, events in options.streams().items():
            options.say(f"store: {name}, beside the peers")
            rows += peer_rows(name, events, options)
    return rows


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
