"""Continual rounds: what it is worth to keep a cache from one to the next, and from evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from tgflow.bench.cache_trace import TGN, plan_of, read_by
from tgflow.bench.options import Options
from tgflow.bench.row import Params, Row
from tgflow.cache import CachedTable, cached
from tgflow.events import EventBatch
from tgflow.tables import FeatureTable

SHARE = 0.005
"""Of the edge rows: the cache, as GNNFlow (SoCC 2024) has it."""
ROUNDS = 100
EPOCHS = 3
KEEPS = (("reuse",), ("reuse", "restore"), ("reuse", "restore", "preload"))
HELD_OUT = 0.1
"""Of a round's batches, the last: evaluated after every epoch."""


def round_rows(name: str, events: EventBatch, options: Options) -> Iterator[Row]:
    """Hit rates, and the share of what is asked for that is never read, beside a bare cache's."""
    plan = plan_of(TGN, events)
    capacity = max(round(SHARE * len(events)), 1)
    batches = [[read_by(plan, epoch, i)[0] for i in range(len(plan))] for epoch in range(EPOCHS)]
    rounds = 10 if options.quick else ROUNDS
    params: Params = {
        "stream": name,
        "rows": capacity,
        "share": SHARE,
        "rounds": rounds,
        "epochs": EPOCHS,
        "policy": "lru",
    }
    base = run_rounds(batches, len(events), capacity, rounds, keeps=()).counters
    asked = base.hits + base.misses
    for keeps in KEEPS:
        counters = run_rounds(batches, len(events), capacity, rounds, keeps=keeps).counters
        kept = params | {"with": ", ".join(keeps)}
        yield Row("rounds", counters.hit_rate, "hit rate", kept, None, base.hit_rate, 1.0)
        saved = 1 - (counters.misses + counters.preloaded) / asked
        yield Row("rounds, all reads counted", saved, "not read", kept, None, base.hit_rate)


def run_rounds(
    batches: Sequence[Sequence[Tensor]],
    num_rows: int,
    capacity: int,
    rounds: int,
    *,
    keeps: Sequence[str],
) -> CachedTable:
    """Train over each round's batches, evaluating its last after every epoch, through one cache.

    Without anything in `keeps`, every round begins with an empty cache, into which evaluation
    brings its rows as well. "reuse": contents stay from round to round. "restore": those before an
    evaluation come back after it. "preload": so do an epoch's first rows before it begins. What the
    latter two read from the table is no miss, and is counted as `preloaded`.
    """
    table = FeatureTable(1, torch.uint8)
    table.append(torch.zeros(num_rows, 1, dtype=torch.uint8))
    cache = cached(table, rows=capacity)
    empty = cache.snapshot()
    for part in torch.arange(len(batches[0])).tensor_split(rounds):
        if "reuse" not in keeps:
            cache.restore(empty)
        num_held = max(round(HELD_OUT * len(part)), 1)
        train, held = part[:-num_held].tolist(), part[-num_held:].tolist()
        for epoch in batches:
            if "preload" in keeps and train:
                cache.preload(epoch[train[0]])
            for index in train:
                cache.gather(epoch[index])
            with cache.restored() if "restore" in keeps else nullcontext():
                for index in held:
                    cache.gather(epoch[index])
    return cache
