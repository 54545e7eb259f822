"""Caches: hit rates, what planning is worth and costs, rounds, live streams, and gathers alone."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.cache_gather import gather_rows
from benchmarks.cache_gpu import device_rows
from benchmarks.cache_live import live_rows
from benchmarks.cache_planner import planner_rows
from benchmarks.cache_rounds import round_rows
from tgflow.bench import cache
from tgflow.bench.cache_trace import MODELS, TGN, Model
from tgflow.bench.options import Options
from tgflow.bench.row import Row
from tgflow.events import EventBatch

draw = cache.draw


def run(options: Options) -> list[Row]:
    """Measure what `tgflow bench cache` does; then planning, rounds, and gathers of 12,000 rows."""
    if options.only_device:
        from tgflow.cuda.device import CudaDevice

        return list(device_rows(CudaDevice(torch.device(options.devices[0])), options))
    rows = cache.run(options)
    for name, events in options.streams().items():
        for model in MODELS:
            rows += trace_rows(name, events, model, options)
        options.say(f"cache: rounds of {name}")
        rows += round_rows(name, events, options)
    options.say("cache: gathers of 12,000 rows")
    return [*rows, *gather_rows(options)]


def trace_rows(name: str, events: EventBatch, model: Model, options: Options) -> Iterator[Row]:
    """What the planner is worth on a model's reads, and write-through on those of a live TGN."""
    for trace, params in cache.named_traces(name, events, model, options):
        yield from planner_rows(trace, params, options)
        if model is TGN and trace.kind == "edges":
            yield from live_rows(name, trace)
