"""What it is worth to a TGAT in training to reuse rows of its lower layer, and what it costs.

NeutronOrch (PVLDB 17, 2024) reuses embeddings of the bottom layer that are a bounded number of
batches old. Here the same model learns the same batches with every staleness, in turns, and then
by itself with several seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

import torch

from benchmarks.reuse_training import BATCH, NEIGHBORS, TimedTraining, contender_of, graph_of
from tgflow.bench.row import Params, Row
from tgflow.bench.setup import Options, restored_threads
from tgflow.bench.train import QUICK_EVENTS, THREADS, set_threads
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.models import TGAT, TGATConfig
from tgflow.train.config import OfflineConfig, Reuse
from tgflow.train.offline import OfflineTrainer

STALENESS = (0, 1, 2, 4, 8, 16)
QUICK_STALENESS = (0, 8)
SEEDS = 5
EPOCHS = 3
WIKIPEDIA_GAIN = 1.6
"""To reach on wikipedia with rows of up to 8 batches before."""
LEAST_GAIN = 0.97
TIME_OF_ROWS = 0.8
"""Of the share of rows that is saved, how much of the time is to be."""
LOST_POINTS = 0.5


def run(options: Options) -> list[Row]:
    """Train TGATs of two layers on each stream, once a staleness.

    Speeds are of its last events, with 172 standard normal features of edges, learned in turns;
    average precision is of times and neighbors alone, over seeds, and `--events` are how many it is
    of. `quick` takes a stream's first 10,000 events only, one seed and an epoch.
    """
    rows: list[Row] = []
    limit = QUICK_EVENTS if options.quick else None
    with restored_threads():
        set_threads()
        for name, events in options.streams().items():
            options.say(f"reuse: {name}, speed")
            rows += speed_rows(events[:limit], stalenesses(options), {"stream": name})
        for name, events in options.streams().items():
            rows += precision_rows(events[: options.events or limit], {"stream": name}, options)
    return rows


def stalenesses(options: Options) -> Sequence[int]:
    """Return what is measured, without reuse first."""
    return QUICK_STALENESS if options.quick else STALENESS


def speed_rows(events: EventBatch, wanted: Sequence[int], params: Params) -> Iterator[Row]:
    """Yield events a second with each staleness, beside none, and how much of the rows it saves."""
    graph = graph_of(events)
    contenders = [contender_of(graph, reuse_with(staleness)) for staleness in wanted]
    for _ in range(len(contenders[0].plan)):
        for contender in contenders:
            contender.step()
    seconds, num_rows = contenders[0].figures
    for each in contenders[1:]:
        yield from contender_rows(each, seconds, num_rows, params)


def contender_rows(
    contender: TimedTraining, seconds: float, num_rows: float, params: Params
) -> Iterator[Row]:
    """Yield the rows of a staleness, beside what a batch takes without reuse."""
    assert contender.reuse is not None
    stats, (own_seconds, own_rows) = contender.reuse.stats, contender.figures
    of = params | {"staleness": contender.staleness, "threads": THREADS}
    saved = 1 - own_rows / num_rows
    is_goal = str(params["stream"]).startswith("wikipedia") and contender.staleness == 8
    yield Row(
        "reuse, training TGAT, beside none",
        BATCH / own_seconds,
        "events/s",
        of
        | {"rows of a batch": round(own_rows), "without reuse": round(num_rows)}
        | {"reused": round(stats.reused / max(stats.asked, 1), 3), "largest lag": stats.largest_lag}
        | {"switched itself off": int(stats.is_off)},
        baseline=BATCH / seconds,
        target_ratio=WIKIPEDIA_GAIN if is_goal else LEAST_GAIN,
    )
    gained = (1 - own_seconds / seconds) / saved if saved > 0 else math.nan
    yield Row("reuse, time saved for rows saved", gained, "", of, TIME_OF_ROWS)


def precision_rows(events: EventBatch, params: Params, options: Options) -> Iterator[Row]:
    """Yield average precision over seeds with each staleness, and what it loses against none."""
    graph = TemporalGraph.from_events(EventBatch(events.src, events.dst, events.t))
    num_seeds, epochs = (1, 1) if options.quick else (SEEDS, EPOCHS)
    plain: list[float] = []
    for reuse in map(reuse_with, stalenesses(options)):
        of = params | {"staleness": reuse.staleness, "seeds": num_seeds, "epochs": epochs}
        options.say(f"reuse: average precision, {', '.join(f'{k} {v}' for k, v in of.items())}")
        found = [precision_of(graph, reuse, seed, epochs) for seed in range(num_seeds)]
        plain = plain or found
        deviation = statistics.stdev(found) if num_seeds > 1 else 0.0
        mean = statistics.fmean(found)
        yield Row("reuse, AP", mean, "", of | {"deviation": round(deviation, 4)})
        if reuse.staleness:
            allowed = max(100 * statistics.stdev(plain) if num_seeds > 1 else 0.0, LOST_POINTS)
            lost = 100 * (statistics.fmean(plain) - mean)
            yield Row("reuse, AP lost", lost, "points", of, target=round(allowed, 2))


def reuse_with(staleness: int) -> Reuse:
    """Return the settings with a staleness alone."""
    return Reuse(staleness=staleness)


def precision_of(graph: TemporalGraph, reuse: Reuse, seed: int, epochs: int) -> float:
    """Return the test's average precision of a TGAT that learned with such reuse."""
    torch.manual_seed(seed)
    model = TGAT(TGATConfig(neighbors=NEIGHBORS))
    config = OfflineConfig(
        epochs=epochs, learning_rate=1e-3, mrr_negatives=1, batch_size=BATCH, seed=seed,
        reuse=reuse,
    )  # fmt: skip
    return float(OfflineTrainer(model, graph, config).fit(progress=False)["test.ap"])
