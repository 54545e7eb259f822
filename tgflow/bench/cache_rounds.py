"""Continual rounds: what it is worth to keep a cache from one to the next, and from evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from tgflow.bench.cache_trace import read_by, tgn_plan
from tgflow.bench.options import Options
from tgflow.bench.row import Params, Row
from tgflow.cache import CachedTable, cached
from tgflow.events import EventBatch
from tgflow.tables import FeatureTable

SHARE = 0.005
"""Of the edge rows: the cache, as GNNFlow (SoCC 2024) has it."""
ROUNDS = 100
EPOCHS = 3
HELD_OUT = 0.1
"""Of a round's batches, the last: evaluated after every epoch."""


def round_rows(name: str, events: EventBatch, options: Options) -> Iterator[Row]:
    """Hit rates and rows read from the table, with reuse and restore and without."""
    plan = tgn_plan(events)
    capacity = max(round(SHARE * len(events)), 1)
    batches = [[read_by(plan, epoch, i)[0] for i in range(len(plan))] for epoch in range(EPOCHS)]
    rounds = 10 if options.quick else ROUNDS
    without = run_rounds(batches, len(events), capacity, rounds, keeps=False)
    keeps = run_rounds(batches, len(events), capacity, rounds, keeps=True)
    params: Params = {
        "stream": name,
        "rows": capacity,
        "share": SHARE,
        "rounds": rounds,
        "epochs": EPOCHS,
        "policy": "lru",
    }
    rates = [each.counters.hit_rate for each in (keeps, without)]
    yield Row("cache, reuse and restore", rates[0], "hit rate", params, None, rates[1], 1.0)
    asked = without.counters.hits + without.counters.misses
    read = [(each.counters.misses + each.counters.preloaded) / asked for each in (keeps, without)]
    saved = 1 - read[0], 1 - read[1]
    name = "cache, reuse and restore, with what it reads"
    yield Row(name, saved[0], "not read from the table", params, None, saved[1], 1.0)


def run_rounds(
    batches: Sequence[Sequence[Tensor]], num_rows: int, capacity: int, rounds: int, *, keeps: bool
) -> CachedTable:
    """Train over each round's batches, evaluating its last after every epoch, through one cache.

    With `keeps`, contents stay from round to round and come back after each evaluation, and an
    epoch's first rows are preloaded; else every round begins with an empty cache, into which
    evaluation brings its rows as well.
    """
    table = FeatureTable(1, torch.uint8)
    table.append(torch.zeros(num_rows, 1, dtype=torch.uint8))
    cache = cached(table, rows=capacity)
    empty = cache.snapshot()
    for part in torch.arange(len(batches[0])).tensor_split(rounds):
        if not keeps:
            cache.restore(empty)
        num_held = max(round(HELD_OUT * len(part)), 1)
        train, held = part[:-num_held].tolist(), part[-num_held:].tolist()
        for epoch in batches:
            if keeps and train:
                cache.preload(epoch[train[0]])
            for index in train:
                cache.gather(epoch[index])
            with cache.restored() if keeps else nullcontext():
                for index in held:
                    cache.gather(epoch[index])
    return cache
