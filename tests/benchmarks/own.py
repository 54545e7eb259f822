"""tgflow models on a link prediction task, as benchmark contenders."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from benchmarks.options import BATCH_SIZE, THREADS, Options, training_events
from benchmarks.results import Params
from tgflow import (
    TGAT,
    TGN,
    ContinualConfig,
    EventBatch,
    Loader,
    Plan,
    TemporalGraph,
    TemporalModel,
)
from tgflow.base.choices import Direction, Precision, Visibility
from tgflow.cuda.device import Device
from tgflow.graph.tables import FeatureTable
from tgflow.nn import TimeEncoding
from tgflow.train.config import ExecutionConfig
from tgflow.train.step import TrainStep

TRAIN_SHARE = 0.85

M = TypeVar("M", bound=TemporalModel)


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
    device: str = "cpu"
    """Device of a peer's model and data; tgflow's own is an argument of `Own`."""
    precision: Precision = "fp32"
    """Of matrix products; bf16 of a peer is torch's autocast."""
    visibility: Visibility = "batch"
    """Of tgflow's neighborhoods; a peer has its own."""
    peer_time: Literal["example", "fixed", "age"] = "example"
    """Encoding of time in a peer's TGN: of its example; with the fixed frequencies of tgflow; or
    also of an event's age, instead of the time from the event to its neighbor's last update."""

    @property
    def num_nodes(self) -> int:
        """Sources and destinations."""
        return int(self.events.dst.max()) + 1

    @property
    def num_batches(self) -> int:
        """Training batches, including a last partial one."""
        return -(-self.train_stop // self.batch_size)

    def set_frequencies(self, time: nn.Linear) -> None:
        """Fix the frequencies of a peer's time encoding, unless they are those of its example."""
        if self.peer_time != "example":
            with torch.no_grad():
                time.weight.copy_(TimeEncoding(time.out_features).frequency.unsqueeze(1))
                time.bias.zero_()
            time.requires_grad_(False)

    def encoded_to(self, last_update: Tensor, t: Tensor) -> Tensor:
        """Return the times that a peer encodes the times of events relative to.

        Args:
            last_update: Times of the neighbors' last updates, int64 `[U]`.
            t: Times of the batch's events; ages are those at the first one.
        """
        is_age = self.peer_time == "age"
        return torch.full_like(last_update, int(t.min())) if is_age else last_update


def task_of(events: EventBatch) -> Task:
    """Return the task on a stream with edge features."""
    src = torch.unique(events.src, return_inverse=True)[1]
    dst = torch.unique(events.dst, return_inverse=True)[1] + int(src.max()) + 1
    stop = int(TRAIN_SHARE * len(events)) // BATCH_SIZE * BATCH_SIZE  # none is in both parts
    return Task(EventBatch(src, dst, events.t, events.x), stop)


def named_task(options: Options) -> tuple[Task, Params]:
    """Return the task on the standard stream, and the parameters of its rows."""
    name, events = training_events(options)
    task = task_of(events)
    return task, {"stream": name, "events": len(task.events), "threads": THREADS}


def graph_on(device: str | Device, x_dim: int, direction: Direction = "bipartite") -> TemporalGraph:
    """Return an empty graph on a device, which has the edge features in its own memory."""
    features = None
    if not isinstance(device, str) or device != "cpu":
        features = FeatureTable(x_dim, placement="device", device=device)
    return TemporalGraph(direction, x_dim, edge_x=features, device=device)


class Own:
    """A tgflow model on a task.

    Args:
        task: The task.
        model: Model to train.
        num_threads: Threads that prepare batches beside the training thread; 0 for none.
        device: Device of graph, features and model.
        capture: Whether a GPU replays batches and steps as CUDA graphs.
    """

    def __init__(
        self,
        task: Task,
        model: TemporalModel,
        num_threads: int = 1,
        device: str | Device = "cpu",
        capture: bool = True,
    ) -> None:
        self.task, self.num_threads = task, num_threads
        graph = graph_on(device, task.events.x_dim)
        graph.append(task.events)
        self.plan = Plan.for_model(
            model,
            graph,
            batch_size=task.batch_size,
            seed=task.seed,
            visibility=task.visibility,
            for_gradients=True,
        )
        self.learner = TrainStep(
            model.to(graph.device),
            ContinualConfig(seed=task.seed, learning_rate=task.lr),
            num_nodes=lambda: graph.num_nodes,
            execution=ExecutionConfig(precision=task.precision, capture=capture),
        )
        self._captures = capture and self.plan.gpu is not None
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
        """Return to the first batch and reset the memory; parameters are kept."""
        self._next = 0
        state = self.learner.model.state
        if state is not None:
            state.reset()

    def evaluate(self) -> tuple[Tensor, Tensor]:
        """Score the held-out events, storing each batch after it is scored."""
        scores = []
        for batch in self._load(self._next, len(self.plan)):
            found = self.learner.predict(batch)
            self.learner.commit(batch, found)
            scores.append(found.named())
        return torch.cat([s["positive"] for s in scores]), torch.cat(
            [s["negative"] for s in scores]
        )

    def _load(self, start: int, stop: int) -> Loader:
        batches, threads = range(start, stop), self.num_threads
        return Loader(self.plan, 0, batches, num_threads=threads, captures=self._captures)


def model_of(task: Task, kind: type[M], **settings: Any) -> M:
    """Return a model with the task's features, time encoding and dropout, and other settings."""
    torch.manual_seed(task.seed)
    widths = {"edge_x_dim": task.events.x_dim, "time_dim": task.dim}
    make: Callable[[Any], M] = kind
    return make(kind.config_type(**widths, dropout=task.dropout, **settings))


def tgn_of(task: Task) -> TGN:
    """Return tgflow's TGN with the task's widths."""
    return model_of(
        task,
        TGN,
        memory_dim=task.dim,
        embedding_dim=task.dim,
        heads=task.heads,
        neighbors=task.neighbors,
        pair_features=(),
    )


def own_tgn(
    task: Task, num_threads: int = 1, device: str | Device = "cpu", capture: bool = True
) -> Own:
    """Return tgflow's TGN on a task."""
    return Own(task, tgn_of(task), num_threads, device, capture)


def own_tgat(
    task: Task, num_threads: int = 1, device: str | Device = "cpu", capture: bool = True
) -> Own:
    """Return tgflow's TGAT on a task, on two hops of recent neighbors."""
    widths = {"embedding_dim": task.dim, "heads": task.heads, "neighbors": task.neighbors}
    model = model_of(task, TGAT, **widths, strategy="recent")
    return Own(task, model, num_threads, device, capture)
