"""A TGAT in training whose lower layer's rows are reused, step by step: what benchmarks time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Generator

import torch

from tgflow.batch import Batch
from tgflow.bench.train import X_DIM
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.models import TGAT
from tgflow.plan.loader import Loader
from tgflow.plan.negatives import NegativeSampler
from tgflow.plan.plan import Plan
from tgflow.train.config import OfflineConfig, Reuse
from tgflow.train.plans import make_plan
from tgflow.train.reuse import reuse_of
from tgflow.train.step import TrainStep

BATCH = 200
NEIGHBORS = 10
TIMED_EVENTS = 20_000
"""The last ones of a stream, learned in turns by all contenders."""
WARMUP = 16
"""Batches after which rows of as many batches as may be are there."""


class TimedTraining:
    """A TGAT that learns a plan's batches step by step.

    Args:
        config: Which rows it reuses.
        plan: Its batches.
        model: The model.
        num_threads: Threads that prepare batches ahead.
    """

    def __init__(self, config: Reuse, plan: Plan, model: TGAT, num_threads: int = 0) -> None:
        self.staleness = config.staleness
        self.plan = plan
        self.seconds: list[float] = []
        self.num_rows: list[int] = []
        """Of each batch, the rows of the lower layer that were computed."""
        self._learner = TrainStep(model, seed=0, learning_rate=1e-4)
        self.reuse = reuse_of(config, self._learner, plan, num_ranks=1)
        tasks = ((0, index) for index in range(len(plan)))
        loader = Loader.of_tasks(plan, tasks, num_threads=num_threads)
        if self.reuse is not None:
            decided = self.reuse.batches(tasks, num_threads)
            loader = Loader.of_tasks(*decided, num_threads=num_threads)
        self._batches = self._loaded(loader)

    @staticmethod
    def _loaded(loader: Loader) -> Generator[Batch]:
        yield from loader

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
        settled = slice(WARMUP, None)
        return statistics.median(self.seconds[settled]), statistics.fmean(self.num_rows[settled])

    def close(self) -> None:
        """Let its threads end."""
        self._batches.close()


def graph_of(events: EventBatch) -> TemporalGraph:
    """Return the graph of events with normal features."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(len(events), X_DIM, generator=generator)
    return TemporalGraph.from_events(EventBatch(events.src, events.dst, events.t, x))


def contender_of(graph: TemporalGraph, config: Reuse, num_threads: int = 0) -> TimedTraining:
    """Return a TGAT at the start of a stream's last events; all of them are alike."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = TGAT.for_graph(graph, neighbors=NEIGHBORS)
    plan = make_plan(
        graph, model, OfflineConfig(batch_size=BATCH), NegativeSampler(),
        seed=0, start=max(0, graph.num_events - TIMED_EVENTS), stop=graph.num_events,
    )  # fmt: skip
    return TimedTraining(config, plan, model, num_threads)
