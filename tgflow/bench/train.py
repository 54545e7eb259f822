"""Benchmarks of batch preparation and of training."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
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
from tgflow.metrics import average_precision
from tgflow.model import TemporalModel
from tgflow.models import TGAT, TGN
from tgflow.nn import PairFeatures
from tgflow.plan.loader import Loader
from tgflow.plan.negatives import NegativeSampler
from tgflow.plan.plan import Plan
from tgflow.tables import FeatureTable
from tgflow.train.config import ContinualConfig
from tgflow.train.continual import ContinualTrainer
from tgflow.train.step import TrainStep

X_DIM = 172
"""Width of the published features, which are not redistributed with the stream."""
BATCH_SIZE = 200
TRAIN_SHARE = 0.85
TURN = 25
"""Batches of one measurement."""
CURVE_POINTS = 5
QUICK_EVENTS = 10_000
THREADS = 2
TGAT_TARGET, TORCH_SHARE_TARGET = 6000.0, 0.85

PREPARED: dict[str, tuple[dict[str, Any], float]] = {
    "TGN, 1 hop of 10": ({"fanouts": (10,), "strategy": "recent", "with_memory": True}, 1e-3),
    "TGN, 1 hop of 10, pair features": (
        {
            "fanouts": (10,),
            "strategy": "recent",
            "with_memory": True,
            "counts": PairFeatures.counts,
        },
        6e-4,
    ),
    "TGAT, 2 hops of 10": ({"fanouts": (10, 10), "strategy": "recent", "with_memory": False}, 6e-3),
    "TGAT, 2 hops of 10, uniform": (
        {"fanouts": (10, 10), "strategy": "uniform", "with_memory": False},
        6e-3,
    ),
}
"""Settings of a plan, and the target in seconds for a batch without features."""

DEVICE_BATCHES = (200, 600, 4000)
DEVICE_TARGETS = {"TGN": (0.5e6, 1.2e6, 3e6), "TGAT": (0.3e6, 0.6e6, 1.2e6)}
"""Events per second on one H200, for each batch size."""
DEVICE_WARM_UP, DEVICE_SECONDS = 10, 3.0
"""Batches of a pass that are not timed, because they compile and capture; least timed seconds."""
LIVE_TARGET, LIVE_WARM_UP, LIVE_PIECE = 0.2e6, 40, 10_000

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
    settings, limit_s = PREPARED[name]
    negatives = NegativeSampler()
    plan = Plan(
        graph, seed=0, batch_size=BATCH_SIZE, visibility="event", negatives=negatives, **settings
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
    """Train TGN and TGAT once over the stream.

    Speeds are medians of turns; `quick` trains on the stream's first 10,000 events only.
    """
    task, params = named_task(options)
    with restored_threads():
        set_threads()
        rows = []
        if options.devices[-1] != "cpu":
            rows.append(live_row(task, params, options.devices[-1], options))
            rows += device_rows(task, params, options.devices[-1], options)
        return rows if options.only_device else rows + cpu_rows(task, params, options)


def cpu_rows(task: Task, params: Params, options: Options) -> list[Row]:
    """Train on the CPU."""
    tgn, tgat = own_tgn(task), own_tgat(task)
    tgn_speed, losses = train_in_turns(tgn, options)
    held_out_ap = average_precision(*tgn.evaluate())
    tgat_speed, _ = train_in_turns(tgat, options)
    return [
        Row("TGN training", tgn_speed, "events/s", params),
        share_row(task, params),
        *quality_rows(losses, held_out_ap, params),
        Row("TGAT training", tgat_speed, "events/s", params, TGAT_TARGET),
    ]


def train_in_turns(own: Own, options: Options) -> tuple[float, list[float]]:
    """Train on the whole task; return the median events per second of turns, and all losses."""
    speeds: list[float] = []
    losses: list[float] = []
    while len(losses) < own.task.num_batches:
        begin, before = time.perf_counter(), len(losses)
        losses += own.train(TURN)
        trained = (len(losses) - before) * own.task.batch_size
        speeds.append(trained / (time.perf_counter() - begin))
        options.say(f"train: batch {len(losses):,}, {speeds[-1]:,.0f} events/s")
    return median(speeds[1:] or speeds), losses


def share_row(task: Task, params: Params) -> Row:
    """Return the share of a step in torch's forward, backward and optimizer, without prefetch."""
    own = own_tgn(task, num_threads=0)
    own.train(TURN)
    own.seconds = own.torch_seconds = 0.0
    own.train(2 * TURN)
    share = own.torch_seconds / max(own.seconds, 1e-9)
    return Row("TGN training step, share in torch", share, "", params, TORCH_SHARE_TARGET)


def quality_rows(losses: Sequence[float], held_out_ap: float, params: Params) -> Iterator[Row]:
    """Return mean losses by fifths of the batches, and the average precision of held-out events."""
    parts = torch.tensor(losses, dtype=torch.float64).tensor_split(CURVE_POINTS)
    for point, part in enumerate(parts, 1):
        named = params | {"part": f"{point}/{CURVE_POINTS}"}
        yield Row("TGN loss", float(part.mean()), "nats", named)
    yield Row("TGN held-out AP", held_out_ap, "", params)


def live_row(task: Task, params: Params, device: str | Device, options: Options) -> Row:
    """Return the speed of a continual trainer with default settings and everything on a GPU.

    Each micro-batch is ranked among 20 negatives, learned with replay, and recorded.
    """
    options.say("train: TGN learns a stream on a device")
    config = ContinualConfig(batch_size=task.batch_size, learning_rate=task.lr)
    graph = graph_on(device, task.events.x_dim)
    trainer = ContinualTrainer(tgn_of(task).to(graph.device), graph, config)
    events = task.events
    pieces = [events[at : at + LIVE_PIECE] for at in range(0, len(events), LIVE_PIECE)]
    records = (step.to_json() for step in trainer.steps(pieces))
    deque(islice(records, min(LIVE_WARM_UP, len(events) // task.batch_size // 2)), maxlen=0)
    before = trainer.position
    seconds = seconds_of(lambda: deque(records, maxlen=0), graph.device.type)
    given = params | {
        "batch": config.batch_size,
        "negatives": config.mrr_negatives,
        "replay": config.replay_ratio,
        "device": "cuda",
    }
    speed = (trainer.position - before) / seconds
    return Row("TGN learning as it comes", speed, "events/s", given, LIVE_TARGET)


def device_rows(
    task: Task, params: Params, device: str | Device, options: Options
) -> Iterator[Row]:
    """Return the speeds of both models for each batch size with everything on a GPU."""
    makers: dict[str, Callable[[Task, int, str | Device], Own]]
    makers = {"TGN": own_tgn, "TGAT": own_tgat}
    for model, make in makers.items():
        for batch_size, target in zip(DEVICE_BATCHES, DEVICE_TARGETS[model], strict=True):
            options.say(f"train: {model}, batches of {batch_size:,} on a device")
            own = make(replace(task, batch_size=batch_size), 1, device)
            given = params | {"batch": batch_size, "device": "cuda"}
            speed = device_speed(own, options)
            yield Row(f"{model} training on the device", speed, "events/s", given, target)


def device_speed(own: Own, options: Options, waits: bool = False) -> float:
    """Return events per second of passes over the full batches, without their first batches.

    Args:
        own: A model at the start of its task.
        options: `quick` makes one pass.
        waits: Whether to synchronize after each step, before the next batch is prepared.
    """
    kind, done, spent = own.learner.device.type, 0, 0.0
    stop = own.task.train_stop // own.task.batch_size
    warm_up = min(DEVICE_WARM_UP, stop // 2)
    while not done or (spent < DEVICE_SECONDS and not options.quick):
        own.rewind()
        steps = own.steps(stop)
        deque(islice(steps, warm_up), maxlen=0)
        timed = (loss.item() if waits else loss for loss in steps)
        spent += seconds_of(partial(deque, timed, 0), kind)
        done += stop - warm_up
    return done * own.task.batch_size / spent


class Own:
    """A tgflow model on a task, with neighborhoods as of the batch's start.

    Args:
        task: The task.
        model: What is trained.
        num_threads: Threads that prepare batches beside the training thread; 0 for none.
        device: Where all of it is: graph, features, model.
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
        self.plan = Plan(
            graph,
            seed=task.seed,
            batch_size=task.batch_size,
            fanouts=model.fanouts,
            strategy="recent",
            visibility="batch",
            negatives=NegativeSampler("random"),
            with_memory=model.state is not None,
            counts=model.counts,
        )
        self.learner = TrainStep(
            model.to(graph.device),
            seed=task.seed,
            learning_rate=task.lr,
            num_nodes=lambda: graph.num_nodes,
        )
        self.seconds = 0.0
        """Time in `train`."""
        self.torch_seconds = 0.0
        """What of it went into torch's forward, backward and optimizer."""
        self._next = 0

    def train(self, num_batches: int) -> list[float]:
        """Train on the next batches; returns their losses. Nothing is prepared beyond them."""
        begin, computed = time.perf_counter(), self.learner.compute_seconds
        stop = min(self._next + num_batches, self.task.num_batches)
        losses = list(self.steps(stop))
        if losses:
            float(losses[-1])  # waits for a device, once
        self.seconds += time.perf_counter() - begin
        self.torch_seconds += self.learner.compute_seconds - computed
        return [float(loss) for loss in losses]

    def steps(self, stop: int) -> Iterator[Tensor]:
        """Train on the batches up to `stop`, one at a time, and yield their losses.

        A GPU is not waited for.
        """
        for batch in self._load(self._next, stop):
            step = self.learner.learn(batch)
            self.learner.commit(batch, step.scores)
            self._next += 1
            yield 2 * step.loss  # a mean over both kinds of events

    def rewind(self) -> None:
        """Go back to the first batch, with what was learned but without memory."""
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
    """Return a model of tgflow with the task's features, time encoding and dropout.

    Args:
        task: The task.
        kind: The model.
        settings: The other fields of its `config_type`.
    """
    torch.manual_seed(task.seed)
    make: Callable[[Any], M] = kind
    widths = {"edge_x_dim": task.events.x_dim, "time_dim": task.dim}
    return make(kind.config_type(**widths, dropout=task.dropout, **settings))


def own_tgn(task: Task, num_threads: int = 1, device: str | Device = "cpu") -> Own:
    """Return tgflow's TGN on a task."""
    return Own(task, tgn_of(task), num_threads, device)


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


def own_tgat(task: Task, num_threads: int = 1, device: str | Device = "cpu") -> Own:
    """Return tgflow's TGAT with the task's widths, on two hops of recent neighbors."""
    model = model_of(
        task,
        TGAT,
        embedding_dim=task.dim,
        heads=task.heads,
        neighbors=task.neighbors,
        strategy="recent",
    )
    return Own(task, model, num_threads, device)
