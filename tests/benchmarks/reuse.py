"""Training a TGAT that reuses rows of its lower layer, by staleness: speed and precision.

NeutronOrch (PVLDB 17, 2024) reuses bottom-layer embeddings within a staleness bound in batches. The
same model learns the same batches with every staleness, in turns, and then separately with several
seeds.
"""

import math
import statistics
import time
from collections.abc import Iterator, Sequence

import torch

from benchmarks.options import QUICK_EVENTS, THREADS, X_DIM, Options, restored_threads, set_threads
from benchmarks.results import Params, Row
from tgflow import TGAT, EventBatch, Loader, OfflineConfig, OfflineTrainer, TemporalGraph
from tgflow.models import TGATConfig
from tgflow.plan import NegativeSampler
from tgflow.train import Reuse
from tgflow.train.plans import make_plan
from tgflow.train.reuse import reuse_of
from tgflow.train.step import TrainStep

STALENESS, QUICK_STALENESS = (0, 1, 2, 4, 8, 16), (0, 8)
SEEDS, EPOCHS = 5, 3
BATCH, NEIGHBORS = 200, 10
TIMED_EVENTS = 20_000
"""Last events of a stream, learned in turns by all contenders."""
WARMUP = 16
"""Batches after which rows of every allowed staleness are held."""
WIKIPEDIA_GAIN, LEAST_GAIN = 1.6, 0.97
"""Target ratios: on wikipedia with rows of up to 8 batches before, and elsewhere."""
TIME_OF_ROWS = 0.8
"""Target of the share of time saved over the share of rows saved."""
LOST_POINTS = 0.5


def run(options: Options) -> list[Row]:
    """Train two-layer TGATs on each stream, once per staleness.

    Speeds are of its last events, with 172 standard normal edge features, learned in turns;
    average precision is without features, over seeds, on the first `--events` events.
    `quick` takes a stream's first 10,000 events only, one seed and an epoch.
    """
    rows: list[Row] = []
    limit = QUICK_EVENTS if options.quick else None
    wanted = QUICK_STALENESS if options.quick else STALENESS
    with restored_threads():
        set_threads()
        for name, events in options.streams().items():
            options.say(f"reuse: {name}, speed")
            rows += speed_rows(events[:limit], wanted, {"stream": name})
        for name, events in options.streams().items():
            part = events[: options.events or limit]
            rows += precision_rows(part, wanted, {"stream": name}, options)
    return rows


class TimedTraining:
    """A TGAT that learns the last events of a graph step by step, with some staleness."""

    def __init__(self, graph: TemporalGraph, staleness: int) -> None:
        self.staleness = staleness
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = TGAT.for_graph(graph, neighbors=NEIGHBORS)
        plan = make_plan(
            graph, model, OfflineConfig(batch_size=BATCH), NegativeSampler(random=1),
            seed=0, start=max(0, graph.num_events - TIMED_EVENTS), stop=graph.num_events,
        )  # fmt: skip
        self.num_batches = len(plan)
        self.seconds: list[float] = []
        self.num_rows: list[int] = []
        """Rows of the lower layer that were computed, of each batch."""
        self._learner = TrainStep(model, OfflineConfig())
        self.reuse = reuse_of(Reuse(staleness=staleness), self._learner, plan, num_ranks=1)
        tasks = ((0, index) for index in range(len(plan)))
        decided = (plan, tasks) if self.reuse is None else self.reuse.batches(tasks, 0)
        self._batches = iter(Loader.of_tasks(*decided, num_threads=0))

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
        """Seconds and rows of a batch after the warm-up."""
        settled = slice(WARMUP, None)
        return statistics.median(self.seconds[settled]), statistics.fmean(self.num_rows[settled])


def speed_rows(events: EventBatch, wanted: Sequence[int], params: Params) -> Iterator[Row]:
    """Yield events per second with each staleness against none, and the share of rows saved."""
    x = torch.randn(len(events), X_DIM, generator=torch.Generator().manual_seed(0))
    graph = TemporalGraph.from_events(EventBatch(events.src, events.dst, events.t, x))
    contenders = [TimedTraining(graph, staleness) for staleness in wanted]
    for _ in range(contenders[0].num_batches):
        for contender in contenders:
            contender.step()
    seconds, num_rows = contenders[0].figures
    for each in contenders[1:]:
        assert each.reuse is not None
        stats, (own_seconds, own_rows) = each.reuse.stats, each.figures
        of = params | {"staleness": each.staleness, "threads": THREADS}
        saved = 1 - own_rows / num_rows
        is_goal = str(params["stream"]).startswith("wikipedia") and each.staleness == 8
        yield Row(
            "reuse, training TGAT, beside none",
            BATCH / own_seconds,
            "events/s",
            of
            | {"rows of a batch": round(own_rows), "without reuse": round(num_rows)}
            | {"reused": round(stats.reused / max(stats.asked, 1), 3)}
            | {"largest lag": stats.largest_lag, "switched itself off": int(stats.is_off)},
            baseline=BATCH / seconds,
            target_ratio=WIKIPEDIA_GAIN if is_goal else LEAST_GAIN,
        )
        gained = (1 - own_seconds / seconds) / saved if saved > 0 else math.nan
        yield Row("reuse, time saved for rows saved", gained, "", of, TIME_OF_ROWS)


def precision_rows(
    events: EventBatch, wanted: Sequence[int], params: Params, options: Options
) -> Iterator[Row]:
    """Yield average precision over seeds with each staleness, and its loss against none."""
    graph = TemporalGraph.from_events(EventBatch(events.src, events.dst, events.t))
    num_seeds, epochs = (1, 1) if options.quick else (SEEDS, EPOCHS)
    plain: list[float] = []
    for staleness in wanted:
        of = params | {"staleness": staleness, "seeds": num_seeds, "epochs": epochs}
        options.say(f"reuse: average precision, {', '.join(f'{k} {v}' for k, v in of.items())}")
        found = [precision_of(graph, staleness, seed, epochs) for seed in range(num_seeds)]
        plain = plain or found
        deviation = statistics.stdev(found) if num_seeds > 1 else 0.0
        mean = statistics.fmean(found)
        yield Row("reuse, AP", mean, "", of | {"deviation": round(deviation, 4)})
        if staleness:
            allowed = max(100 * statistics.stdev(plain) if num_seeds > 1 else 0.0, LOST_POINTS)
            lost = 100 * (statistics.fmean(plain) - mean)
            yield Row("reuse, AP lost", lost, "points", of, target=round(allowed, 2))


def precision_of(graph: TemporalGraph, staleness: int, seed: int, epochs: int) -> float:
    """Return the test average precision of a TGAT trained with such reuse."""
    torch.manual_seed(seed)
    model = TGAT(TGATConfig(neighbors=NEIGHBORS))
    config = OfflineConfig(
        epochs=epochs, learning_rate=1e-3, mrr_negatives=1, batch_size=BATCH, seed=seed,
        reuse=Reuse(staleness=staleness),
    )  # fmt: skip
    return float(OfflineTrainer(model, graph, config).fit(progress=False)["test.ap"])
