"""The models on a task: plan, loader and learner, as the trainers use them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from tgflow.bench.task import Task
from tgflow.cuda.device import Device
from tgflow.graph import TemporalGraph
from tgflow.model import TemporalModel
from tgflow.models import TGAT, TGN
from tgflow.plan.loader import BatchSource, Loader
from tgflow.plan.negatives import NegativeSampler
from tgflow.plan.plan import Plan
from tgflow.tables import FeatureTable
from tgflow.train.step import TrainStep

M = TypeVar("M", bound=TemporalModel)


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
        self.source: BatchSource = self.plan
        """Where the batches come from."""
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
        return Loader(self.source, 0, batches, num_threads=self.num_threads, captures=captures)


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
