"""What it is worth to a TGAT in training to reuse rows of its lower layer, and what it costs.

NeutronOrch (PVLDB 17, 2024) reuses embeddings of the bottom layer that are a bounded number of
batches old. Here the same model learns the same batches with every staleness, in turns, and then by
itself with several seeds.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence

import torch

from tgflow.bench.options import Options
from tgflow.bench.row import Params, Row
from tgflow.bench.train import QUICK_EVENTS, THREADS, X_DIM, set_threads
from tgflow.bench.turns import restored_threads
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.models import TGAT, TGATConfig
from tgflow.plan.loader import Loader
from tgflow.plan.negatives import NegativeSampler
from tgflow.plan.plan import Plan
from tgflow.report.chart import Chart, Line
from tgflow.report.formatting import compact
from tgflow.report.svg import render_svg
from tgflow.train.config import OfflineConfig, Reuse
from tgflow.train.learner import Learner
from tgflow.train.offline import OfflineTrainer
from tgflow.train.plans import make_plan
from tgflow.train.reuse import reuse_of

BATCH = 200
NEIGHBORS = 10
STALENESS = (0, 1, 2, 4, 8, 16)
QUICK_STALENESS = (0, 8)
TIMED_EVENTS = 20_000
"""The last ones of a stream, learned in turns with every staleness."""
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
    average precision is of times and neighbors alone, over seeds. `quick` takes a stream's first
    10,000 events only, one seed and an epoch.
    """
    rows: list[Row] = []
    limit = options.events or (QUICK_EVENTS if options.quick else None)
    with restored_threads():
        set_threads()
        for name, events in options.streams().items():
            options.say(f"reuse: {name}, speed")
            speeds = speed_rows(events[:limit], stalenesses(options), {"stream": name})
            rows += speeds
            rows += precision_rows(events[:limit], {"stream": name}, options)
    return rows


def stalenesses(options: Options) -> Sequence[int]:
    """Return what is measured, without reuse first."""
    return QUICK_STALENESS if options.quick else STALENESS


class TimedTraining:
    """A TGAT that learns a plan's batches step by step.

    Args:
        staleness: Of the rows that it reuses.
        plan: Its batches.
        model: The model.
    """

    def __init__(self, staleness: int, plan: Plan, model: TGAT) -> None:
        self.staleness = staleness
        self.plan = plan
        self.seconds: list[float] = []
        self.num_rows: list[int] = []
        """Of each batch, the rows of the lower layer that were computed."""
        self._learner = Learner(model, seed=0, learning_rate=1e-4)
        self.reuse = reuse_of(Reuse(staleness=staleness), self._learner, plan, num_ranks=1)
        tasks = ((0, index) for index in range(len(plan)))
        loader = Loader.of_tasks(plan, tasks, num_threads=0)
        if self.reuse is not None:
            loader = Loader.of_tasks(*self.reuse.batches(tasks, 0), num_threads=0)
        self._batches = iter(loader)

    def step(self) -> None:
        """Prepare a batch and learn from it."""
        begin = time.perf_counter()
        batch = next(self._batches)
        if self.reuse is None:
            self._learner.learn(batch)
        else:
            self.reuse.learn(self._learner, batch)
        self.seconds.append(time.perf_counter() - begin)
        self.num_rows.append(len(batch.blocks[1].target))

    @property
    def figures(self) -> tuple[float, float]:
        """Seconds and rows of a batch, once rows of as many batches as may be are there."""
        settled = slice(max(STALENESS), None)
        return statistics.median(self.seconds[settled]), statistics.fmean(self.num_rows[settled])


def speed_rows(events: EventBatch, wanted: Sequence[int], params: Params) -> Iterator[Row]:
    """Yield events a second with each staleness, beside none, and how much of the rows it saves."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(len(events), X_DIM, generator=generator)
    graph = TemporalGraph.from_events(EventBatch(events.src, events.dst, events.t, x))
    contenders = [contender_of(graph, staleness) for staleness in wanted]
    for _ in range(len(contenders[0].plan)):
        for contender in contenders:
            contender.step()
    seconds, num_rows = contenders[0].figures
    for each in contenders[1:]:
        yield from contender_rows(each, seconds, num_rows, params)


def contender_of(graph: TemporalGraph, staleness: int) -> TimedTraining:
    """Return a TGAT at the start of a stream's last events; all of them are alike."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = TGAT.for_graph(graph, neighbors=NEIGHBORS)
    plan = make_plan(
        graph, model, OfflineConfig(batch_size=BATCH), NegativeSampler(),
        seed=0, start=max(0, graph.num_events - TIMED_EVENTS), stop=graph.num_events,
    )  # fmt: skip
    return TimedTraining(staleness, plan, model)


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
    found: dict[int, list[float]] = {}
    for staleness in stalenesses(options):
        options.say(f"reuse: {params['stream']}, average precision with staleness {staleness}")
        found[staleness] = [
            precision_of(graph, staleness, seed, epochs) for seed in range(num_seeds)
        ]
        of = params | {"staleness": staleness, "seeds": num_seeds, "epochs": epochs}
        deviation = statistics.stdev(found[staleness]) if num_seeds > 1 else 0.0
        mean = statistics.fmean(found[staleness])
        yield Row("reuse, AP", mean, "", of | {"deviation": round(deviation, 4)})
        if staleness:
            plain = found[0]
            allowed = max(100 * statistics.stdev(plain) if num_seeds > 1 else 0.0, LOST_POINTS)
            lost = 100 * (statistics.fmean(plain) - mean)
            yield Row("reuse, AP lost", lost, "points", of, target=round(allowed, 2))


def precision_of(graph: TemporalGraph, staleness: int, seed: int, epochs: int) -> float:
    """Return the test's average precision of a TGAT that learned with a staleness."""
    torch.manual_seed(seed)
    model = TGAT(TGATConfig(neighbors=NEIGHBORS))
    config = OfflineConfig(
        epochs=epochs, learning_rate=1e-3, mrr_negatives=1, batch_size=BATCH, seed=seed,
        reuse=Reuse(staleness=staleness),
    )  # fmt: skip
    return float(OfflineTrainer(model, graph, config).fit()["test.ap"])


def draw(rows: Sequence[Row]) -> str:
    """Return speed and average precision against staleness as SVG, a line for each stream."""
    streams = list(dict.fromkeys(str(row.params["stream"]) for row in rows))
    speed, precision = "reuse, training TGAT, beside none", "reuse, AP"
    charts = [
        Chart(
            title="Speed of training",
            note="times that without reuse; TGAT, 2 layers, batches of 200",
            lines=[_line(rows, speed, name, i) for i, name in enumerate(streams)],
            show_x=compact, show_y=lambda y: f"{y:.2g}x", x_name="staleness, batches", low=0.0,
        ),
        Chart(
            title="Average precision of the test",
            note="means over seeds",
            lines=[_line(rows, precision, name, i) for i, name in enumerate(streams)],
            show_x=compact, show_y=lambda y: f"{y:.2f}", x_name="staleness, batches",
        ),
    ]  # fmt: skip
    return render_svg(charts)


def _line(rows: Sequence[Row], name: str, stream: str, number: int) -> Line:
    points = [
        (float(row.params["staleness"]), row.value if row.ratio is None else row.ratio)
        for row in rows
        if row.name == name and row.params["stream"] == stream
    ]
    if points and points[0][0]:
        points.insert(0, (0.0, 1.0))
    return Line(stream, [x for x, _ in points], [y for _, y in points], number + 1)
