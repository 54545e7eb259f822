"""Benchmarks of batch preparation and of training."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, TypeVar

import torch
from torch import Tensor

from tgflow import _core
from tgflow.bench.row import Params, Row
from tgflow.bench.setup import Options, restored_threads, seconds_of
from tgflow.cuda.device import Device
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.model import TemporalModel
from tgflow.models import TGAT, TGN
from tgflow.nn import PairFeatures
from tgflow.plan.loader import Loader
from tgflow.plan.negatives import NegativeSampler
from tgflow.plan.plan import Plan
from tgflow.tables import FeatureTable
from tgflow.train.step import TrainStep

X_DIM = 172
"""Width of the published features, which are not redistributed with the stream."""
BATCH_SIZE = 200
TRAIN_SHARE = 0.85
TURN = 25
"""Batches of one measurement."""
QUICK_EVENTS = 10_000
THREADS = 2
TGAT_TARGET = 6000.0

PREPARED: dict[str, tuple[dict[str, Any], float]] = {
    "TGN, 1 hop of 10": ({"with_memory": True}, 1e-3),
    "TGN, 1 hop of 10, pair features": (
        {"with_memory": True, "counts": PairFeatures.counts},
        6e-4,
    ),
    "TGAT, 2 hops of 10": ({"fanouts": (10, 10)}, 6e-3),
    "TGAT, 2 hops of 10, uniform": ({"fanouts": (10, 10), "strategy": "uniform"}, 6e-3),
}
"""Settings of a plan, and the target in seconds for a batch without features."""

M = TypeVar("M", bound=TemporalModel)


def prepare(options: Options) -> list[Row]:
    """Measure the preparation of batches of 200 events and random negatives on one thread."""
    with restored_threads():
        _core.set_num_threads(1)
        _, events = options.wikipedia()
        x = torch.randn(len(events), X_DIM, generator=torch.Generator().manual_seed(0))
        return [
            prepare_row(graph, name, options.rounds)
            for graph in map(TemporalGraph.from_events, (events, replace(events, x=x)))
            for name in PREPARED
        ]


def prepare_row(graph: TemporalGraph, name: str, rounds: int) -> Row:
    """Measure the preparation of every fourth batch of the second half; the best round counts."""
    changes, limit_s = PREPARED[name]
    settings: dict[str, Any] = {"fanouts": (10,), "strategy": "recent", "with_memory": False}
    plan = Plan(
        graph,
        seed=0,
        batch_size=BATCH_SIZE,
        visibility="event",
        negatives=NegativeSampler(),
        **settings | changes,
    )
    indices = range(len(plan) // 2, len(plan) - 1, 4)
    best = min(
        seconds_of(lambda: [plan.batch(0, index) for index in indices]) for _ in range(rounds)
    )
    x_dim = 0 if graph.edge_x is None else graph.edge_x.dim
    params: Params = {"batch": BATCH_SIZE, "x_dim": x_dim, "threads": 1}
    target = None if x_dim else BATCH_SIZE / limit_s
    return Row(f"prepare, {name}", BATCH_SIZE * len(indices) / best, "events/s", params, target)


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Link prediction on a bipartite stream in seconds: train on a prefix, score the rest.

    Destinations are numbered after all sources, so that random negatives come from one range.
    """

    events: EventBatch
    train_stop: int
    """The log position where training ends and the held-out events begin."""
    seed: int = 0
    batch_size: int = BATCH_SIZE
    dim: int = 100
    """Width of memory, embedding and time encoding."""
    neighbors: int = 10
    """Most recent neighbors per node and hop."""
    heads: int = 2
    dropout: float = 0.1
    lr: float = 1e-4

    @property
    def num_nodes(self) -> int:
        """Sources and destinations."""
        return int(self.events.dst.max()) + 1

    @property
    def num_batches(self) -> int:
        """Training batches, including a last partial one."""
        return -(-self.train_stop // self.batch_size)


def task_of(events: EventBatch) -> Task:
    """Return the task on a stream, with standard normal edge features."""
    src = torch.unique(events.src, return_inverse=True)[1]
    dst = torch.unique(events.dst, return_inverse=True)[1] + int(src.max()) + 1
    x = torch.randn(len(events), X_DIM, generator=torch.Generator().manual_seed(0))
    return Task(EventBatch(src, dst, events.t, x), int(TRAIN_SHARE * len(events)))


def named_task(options: Options) -> tuple[Task, Params]:
    """Return the task on the standard stream, and the parameters of its rows."""
    name, events = options.wikipedia()
    task = task_of(events[: options.events or (QUICK_EVENTS if options.quick else None)])
    return task, {"stream": name, "events": len(task.events), "threads": THREADS}


def set_threads() -> None:
    """Set the numbers of threads of torch and the core."""
    torch.set_num_threads(THREADS)
    _core.set_num_threads(THREADS)


def train(options: Options) -> list[Row]:
    """Train TGN and TGAT once over the stream; `quick` takes its first 10,000 events only."""
    task, params = named_task(options)
    with restored_threads():
        set_threads()
        rows = []
        for device in options.devices:
            given = params if device == "cpu" else params | {"device": device}
            speed = train_speed(own_tgn(task, device=device), options)
            rows.append(Row("TGN training", speed, "events/s", given))
            speed = train_speed(own_tgat(task, device=device), options)
            target = TGAT_TARGET if device == "cpu" else None
            rows.append(Row("TGAT training", speed, "events/s", given, target))
        return rows


def train_speed(own: Own, options: Options) -> float:
    """Train on the whole task; return the median events per second of turns but the first."""
    speeds: list[float] = []
    for done in range(0, own.task.num_batches, TURN):
        begin = time.perf_counter()
        losses = own.train(TURN)
        speeds.append(len(losses) * own.task.batch_size / (time.perf_counter() - begin))
        options.say(f"train: batch {done + len(losses):,}, {speeds[-1]:,.0f} events/s")
    return median(speeds[1:] or speeds)


class Own:
    """A tgflow model on a task, with neighborhoods as of the batch's start.

    Args:
        task: The task.
        model: Model to train.
        num_threads: Threads that prepare batches beside the training thread; 0 for none.
        device: Device of graph, features and model.
    """

    def __init__(
        self,
        task: Task,
        model: TemporalModel,
        num_threads: int = 1,
        device: str | Device = "cpu",
    ) -> None:
        self.task, self.num_threads = task, num_threads
        graph = graph_on(device, task.events.x_dim)
        graph.append(task.events)
        self.plan = Plan.for_model(
            model, graph, batch_size=task.batch_size, seed=task.seed, visibility="batch"
        )
        self.learner = TrainStep(
            model.to(graph.device),
            seed=task.seed,
            learning_rate=task.lr,
            num_nodes=lambda: graph.num_nodes,
        )
        self._next = 0

    def train(self, num_batches: int) -> list[float]:
        """Train on the next batches and return their losses; synchronizes once."""
        losses = list(self.steps(min(self._next + num_batches, self.task.num_batches)))
        return torch.stack(losses).tolist() if losses else []

    def steps(self, stop: int) -> Iterator[Tensor]:
        """Train on the batches up to `stop`, one at a time, and yield their losses.

        Does not synchronize.
        """
        for batch in self._load(self._next, stop):
            step = self.learner.learn(batch)
            self.learner.commit(batch, step.scores)
            self._next += 1
            yield 2 * step.loss  # a mean over both kinds of events

    def rewind(self) -> None:
        """Go back to the first batch and reset the memory; parameters are kept."""
        self._next = 0
        state = self.learner.model.state
        if state is not None:
            state.reset()

    def evaluate(self) -> tuple[Tensor, Tensor]:
        """Score the held-out events, storing each batch after it is scored."""
        scores = []
        for batch in self._load(self._next, len(self.plan)):
            scores.append(self.learner.predict(batch))
            self.learner.commit(batch, scores[-1])
        return torch.cat([s.positive for s in scores]), torch.cat([s.negative for s in scores])

    def _load(self, start: int, stop: int) -> Loader:
        captures = self.plan.gpu is not None
        batches = range(start, stop)
        return Loader(self.plan, 0, batches, num_threads=self.num_threads, captures=captures)


def graph_on(device: str | Device, x_dim: int) -> TemporalGraph:
    """Return an empty graph on a device, which has the edge features in its own memory."""
    features = None
    if not isinstance(device, str) or device != "cpu":
        features = FeatureTable(x_dim, placement="device", device=device)
    return TemporalGraph("bipartite", x_dim, edge_x=features, device=device)


def model_of(task: Task, kind: type[M], **settings: Any) -> M:
    """Return a model with the task's features, time encoding and dropout, and other settings."""
    torch.manual_seed(task.seed)
    widths = {"edge_x_dim": task.events.x_dim, "time_dim": task.dim}
    return kind(kind.config_type(**widths, dropout=task.dropout, **settings))


def tgn_of(task: Task, pair_features: bool = False) -> TGN:
    """Return tgflow's TGN with the task's widths."""
    return model_of(
        task,
        TGN,
        memory_dim=task.dim,
        embedding_dim=task.dim,
        heads=task.heads,
        neighbors=task.neighbors,
        pair_features=pair_features,
    )


def own_tgn(task: Task, num_threads: int = 1, device: str | Device = "cpu") -> Own:
    """Return tgflow's TGN on a task."""
    return Own(task, tgn_of(task), num_threads, device)


def own_tgat(task: Task, num_threads: int = 1, device: str | Device = "cpu") -> Own:
    """Return tgflow's TGAT on a task, on two hops of recent neighbors."""
    widths = {"embedding_dim": task.dim, "heads": task.heads, "neighbors": task.neighbors}
    return Own(task, model_of(task, TGAT, **widths, strategy="recent"), num_threads, device)
