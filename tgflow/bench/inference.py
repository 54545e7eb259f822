"""What a memo of rows is worth to a TGAT that is asked, and what its answers lose by fan-out."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor

from tgflow.bench.options import Options
from tgflow.bench.own import graph_on, model_of
from tgflow.bench.row import Params, Row
from tgflow.bench.task import Task
from tgflow.bench.train import QUICK_EVENTS, THREADS, set_threads, task_of
from tgflow.bench.turns import restored_threads
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.inference import Inference
from tgflow.inference.queries import Fanout
from tgflow.metrics import average_precision
from tgflow.models import TGAT, TGATConfig
from tgflow.train.config import OfflineConfig
from tgflow.train.offline import OfflineTrainer

BATCH = 200
ASKED = 20_000
"""Events of the stream's end that are asked about, beginning with an empty memo."""
MEMO = "256MiB"
MEMO_GAIN = 2.5
FANOUTS: tuple[Fanout, ...] = (5, 10, 20, 50, "all")
TRAINED_WITH = 20
EPOCHS = 3
LOST_POINTS = 0.2
"""Of average precision, in hundredths, that fan-outs of 20 may lose against whole neighborhoods."""


def run(options: Options) -> list[Row]:
    """Ask a TGAT about a stream's events and a random destination each, batch by batch.

    First with and without a memo, on the standard stream; then, once it is trained, by fan-out on
    each stream. `quick` takes a stream's first 10,000 events only, and an epoch.
    """
    rows: list[Row] = []
    limit = options.events or (QUICK_EVENTS if options.quick else None)
    with restored_threads():
        set_threads()
        name, events = options.wikipedia()
        for fanout in (10, 20):
            options.say(f"inference: {name}, memo, {fanout} neighbors")
            rows.append(memo_row(task_of(events[:limit]), fanout, options.rounds, {"stream": name}))
        for name, events in options.streams().items():
            options.say(f"inference: {name}, training")
            epochs = 1 if options.quick else EPOCHS
            rows += fanout_rows(events[:limit], epochs, {"stream": name}, options)
    return rows


def memo_row(task: Task, fanout: int, rounds: int, params: Params) -> Row:
    """Return how many events a second are scored with a memo, beside none."""
    graph = graph_on("cpu", task.events.x_dim)
    graph.append(task.events)
    model = model_of(task, TGAT, embedding_dim=task.dim, neighbors=fanout, strategy="recent")
    first = max(len(task.events) - ASKED, 0)
    best: dict[str | None, float] = {}
    found: dict[str | None, Tensor] = {}
    share = 0.0
    for _ in range(min(rounds, 3)):
        for memo in (None, MEMO):
            engine = Inference(model, graph, memo=memo)
            begin = time.perf_counter()
            found[memo] = scores_of(engine, first)
            speed = len(found[memo]) / (time.perf_counter() - begin)
            best[memo] = max(best.get(memo, 0.0), speed)
            if engine.memo_use is not None:
                share = engine.memo_use.num_found / engine.memo_use.num_asked
    return Row(
        "inference, TGAT with a memo, beside none",
        best[MEMO],
        "events/s",
        params
        | {"neighbors": fanout, "events": len(found[MEMO]), "threads": THREADS}
        | {"rows found": round(share, 3)}
        | {"largest difference": float(f"{(found[MEMO] - found[None]).abs().max():.1e}")},
        baseline=best[None],
        target_ratio=MEMO_GAIN,
    )


def fanout_rows(events: EventBatch, epochs: int, params: Params, options: Options) -> Iterator[Row]:
    """Yield average precision and speed of a trained TGAT by fan-out, and what 20 neighbors lose.

    It learns from times and neighbors alone, in the trainer's first 85 %; the rest is asked about.
    """
    graph = TemporalGraph.from_events(events)
    torch.manual_seed(0)
    model = TGAT(TGATConfig(neighbors=TRAINED_WITH))
    config = OfflineConfig(epochs=epochs, learning_rate=1e-3, mrr_negatives=1, batch_size=BATCH)
    trainer = OfflineTrainer(model, graph, config)
    trainer.fit(progress=False)
    precision: dict[Fanout, float] = {}
    for fanout in FANOUTS:
        options.say(f"inference: {params['stream']}, {fanout} neighbors")
        engine = Inference(model, graph, (fanout, fanout), memo=MEMO)
        begin = time.perf_counter()
        scores = scores_of(engine, trainer.split.test_start)
        speed = len(scores) / (time.perf_counter() - begin)
        precision[fanout] = average_precision(scores[:, 0], scores[:, 1])
        asked = params | {"neighbors": str(fanout), "events": len(scores), "threads": THREADS}
        yield Row("inference, AP by fan-out", precision[fanout], "", asked)
        yield Row("inference, speed by fan-out", speed, "events/s", asked)
    lost = 100 * (precision["all"] - precision[20])
    yield Row("inference, AP lost by 20 neighbors", lost, "points", params, LOST_POINTS)


def scores_of(engine: Inference, first: int) -> Tensor:
    """Return the scores of a log's events from `first` on, and of a random destination each.

    They are asked for in batches, each as of its start. float32 `[N, 2]`.
    """
    events = engine.graph.log.read(first, engine.graph.num_events)
    known = torch.unique(engine.graph.log.read(0, engine.graph.num_events).dst)
    draw = torch.randint(len(known), (len(events),), generator=torch.Generator().manual_seed(0))
    dst = torch.stack([events.dst, known[draw]], dim=1)
    parts = []
    for start in range(0, len(events), BATCH):
        rows = slice(start, start + BATCH)
        src, t = events.src[rows], events.t[rows]
        parts.append(engine.score(src, dst[rows], t, as_of=first + start))
    return torch.cat(parts)
