"""How fast models on counts of the past go through a stream, and what counting costs by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from tgflow.bench.options import Options
from tgflow.bench.row import Params, Row
from tgflow.bench.train import QUICK_EVENTS, THREADS, set_threads
from tgflow.bench.turns import restored_threads
from tgflow.counts import Count
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.models import MODELS
from tgflow.plan.counts import CountHistory
from tgflow.train.continual import ContinualTrainer

EVENTS_PER_SECOND = {"recency": 150_000.0, "edgebank": 150_000.0, "counts": 30_000.0}
"""To reach by model; `counts` learns, the others have no parameters."""
ANSWERS_PER_SECOND = 1e6
BATCH = 200
NEGATIVES = 20
ASKED_BATCHES = 100
"""Of the stream's last ones, about which counts are asked."""


@dataclass(frozen=True, slots=True)
class CountedLists:
    """What is counted for a model, and what that is to reach."""

    counts: Sequence[Count]
    appended: float
    """Events a second."""
    num_bytes: float
    """Bytes an event."""


def run(options: Options) -> list[Row]:
    """Measure each stream: whole passes of the models in turns, then counting on one thread.

    `quick` takes a stream's first 10,000 events only.
    """
    rows: list[Row] = []
    with restored_threads():
        set_threads()
        for name, stream in options.streams().items():
            events = stream[: options.events or (QUICK_EVENTS if options.quick else None)]
            params: Params = {"stream": name, "events": len(events)}
            options.say(f"models: {name}, whole passes")
            rows += pass_rows(events, params | {"threads": THREADS}, options.rounds)
            options.say(f"models: {name}, counting")
            rows += counting_rows(events, params, options.rounds)
    return rows


def pass_rows(events: EventBatch, params: Params, rounds: int) -> Iterator[Row]:
    """Predict, learn and store all events, with 20 negatives of each, as `tgflow run` does."""
    wall, cpu = (dict.fromkeys(EVENTS_PER_SECOND, float("inf")) for _ in range(2))
    for _ in range(rounds):
        for name in EVENTS_PER_SECOND:
            started, used = time.perf_counter(), time.process_time()
            go_through(name, events)
            wall[name] = min(wall[name], time.perf_counter() - started)
            cpu[name] = min(cpu[name], time.process_time() - used)
    for name, target in EVENTS_PER_SECOND.items():
        of_model = params | {"model": name}
        yield Row("prequential", len(events) / wall[name], "events/s", of_model, target)
        speed = len(events) / cpu[name]
        yield Row("prequential, a second of all cores", speed, "events/s", of_model)


def go_through(name: str, events: EventBatch) -> None:
    """Let a new model of that name, as it is by default, take in all events."""
    entry = MODELS[name]
    trainer = ContinualTrainer(entry.model(**entry.settings), TemporalGraph("undirected"))
    trainer.run([events], progress=False)


def counting_rows(events: EventBatch, params: Params, rounds: int) -> Iterator[Row]:
    """Append all events to the lists of counts, and ask about the last batches."""
    graph = TemporalGraph.from_events(events)
    for name, lists in counted_lists().items():
        seconds, history = float("inf"), CountHistory(graph, lists.counts)
        for _ in range(rounds):
            history = CountHistory(graph, lists.counts)
            started = time.perf_counter()
            history.figures(len(events))  # reads up to there
            seconds = min(seconds, time.perf_counter() - started)
        named = params | {"lists of": name}
        appended, size = len(events) / seconds, history.nbytes / len(events)
        yield Row("counting, append", appended, "events/s", named, lists.appended)
        yield Row("counting, memory", size, "bytes/event", named, lists.num_bytes)
        answered = max(answers_per_second(history, events) for _ in range(rounds))
        yield Row("counting, answers a core", answered, "answers/s", named, ANSWERS_PER_SECOND)


def counted_lists() -> Mapping[str, CountedLists]:
    """Return what is measured by name."""
    reference, every = MODELS["counts"], {"base": True, "window": True, "both": True}
    return {
        "recency": CountedLists(MODELS["recency"].model().counts, 2e6, 50),
        "counts": CountedLists(reference.model().counts, 4e5, 150),
        "counts with window": CountedLists(
            reference.model(reference.config(**every)).counts, 4e5, 400
        ),
    }


def answers_per_second(history: CountHistory, events: EventBatch) -> float:
    """Return how many answers one thread gives a second, each as of its event."""
    first = max(0, len(events) // BATCH - ASKED_BATCHES)
    draws = torch.Generator().manual_seed(0)
    seconds, num = 0.0, 0
    for at in range(first * BATCH, len(events) - BATCH + 1, BATCH):
        batch, limit = events[at : at + BATCH], torch.arange(at, at + BATCH)
        others = torch.randint(0, len(events), (BATCH, NEGATIVES), generator=draws)
        negatives = events.dst[others]
        started = time.perf_counter()
        history.answer(batch, None, negatives, limit=limit, stop=at + BATCH)
        seconds += time.perf_counter() - started
        num += len(history.asked) * BATCH * (1 + NEGATIVES)
    return num / seconds
