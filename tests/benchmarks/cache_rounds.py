"""Continual rounds: what it is worth to keep a cache from one to the next, and from evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from tgflow.bench.cache_trace import BATCH_SIZE, TGN, plan_of, read_by
from tgflow.bench.options import Options
from tgflow.bench.row import Params, Row
from tgflow.cache import CachedTable, cached
from tgflow.events import EventBatch
from tgflow.tables import FeatureTable
from tgflow.train.caches import restore_upcoming

SHARE = 0.005
"""Of the edge rows: the cache, as GNNFlow (SoCC 2024) has it."""
ROUNDS = 100
EPOCHS = 3
NEXT = "restore of what comes next"
KEEPS = (("reuse",), ("reuse", "restore"), ("reuse", "restore", "preload"), ("reuse", NEXT))
"""The last is what `isolate_evaluation` does, and has figures to reach."""
HELD_OUT = 0.1
"""Of a round's batches, the last: evaluated after every epoch."""


def round_rows(name: str, events: EventBatch, options: Options) -> Iterator[Row]:
    """Hit rates, and the share of what is asked for that is never read, beside a bare cache's.

    Both with the rows of new events written through to the cache, as `CachedTable.append` does, and
    without, as in GNNFlow. A round's rows are more than the cache holds: written through, they
    leave nothing to reuse.
    """
    plan = plan_of(TGN, events)
    capacity = max(round(SHARE * len(events)), 1)
    batches = [[read_by(plan, epoch, i)[0] for i in range(len(plan))] for epoch in range(EPOCHS)]
    rounds = min(10 if options.quick else ROUNDS, len(plan))
    params: Params = {
        "stream": name,
        "rows": capacity,
        "share": SHARE,
        "rounds": rounds,
        "epochs": EPOCHS,
        "policy": "lru",
    }
    for writes_through in (True, False):
        bare, *kept = (
            run_rounds(
                batches, len(events), capacity, rounds, keeps=keeps, writes_through=writes_through
            ).counters
            for keeps in ((), *KEEPS)
        )
        through = params | {"written through": "yes" if writes_through else "no"}
        for keeps, counters in zip(KEEPS, kept, strict=True):
            of = through | {"with": ", ".join(keeps)}
            against = (None, bare.hit_rate, 1.0 if NEXT in keeps else None)
            yield Row("rounds", counters.hit_rate, "hit rate", of, *against)
            saved = 1 - (counters.misses + counters.preloaded) / (counters.hits + counters.misses)
            yield Row("rounds, all reads counted", saved, "not read", of, *against)


def run_rounds(
    batches: Sequence[Sequence[Tensor]],
    num_rows: int,
    capacity: int,
    rounds: int,
    *,
    keeps: Sequence[str],
    writes_through: bool = True,
) -> CachedTable:
    """Train over each round's batches, evaluating its last after every epoch, through one cache.

    A round begins with the rows of its events, which are appended to the table. Without anything in
    `keeps`, the cache is emptied before that, and evaluation brings its rows into it as well.
    "reuse": contents stay from round to round. "restore": those before an evaluation come back
    after it. "preload": so do an epoch's first rows before it begins; `NEXT`: only those of them
    that were held before the evaluation. What these three read from the table is no miss, and is
    counted as `preloaded`.
    """
    cache = cached(FeatureTable(1, torch.uint8), rows=capacity)
    empty, held = cache.snapshot(), cache.contents()
    for part in torch.arange(len(batches[0])).tensor_split(rounds):
        if "reuse" not in keeps:
            cache.restore(empty)
        num_new = min((int(part[-1]) + 1) * BATCH_SIZE, num_rows) - len(cache)
        grows = cache if writes_through else cache.table
        grows.append(torch.zeros(num_new, 1, dtype=torch.uint8))
        num_held_out = max(round(HELD_OUT * len(part)), 1)
        train, held_out = part[:-num_held_out].tolist(), part[-num_held_out:].tolist()
        for epoch in batches:
            if "preload" in keeps and train:
                cache.preload(epoch[train[0]])
            if NEXT in keeps and train:
                restore_upcoming(cache, held, epoch[train[0]])
            for index in train:
                cache.gather(epoch[index])
            held = cache.contents()
            with cache.restored() if "restore" in keeps else nullcontext():
                for index in held_out:
                    cache.gather(epoch[index])
    return cache
