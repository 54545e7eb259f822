"""State of one entrant during a comparison: active, frozen or dropped out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tgflow.checkpoint import Checkpoint, Component
from tgflow.checkpoint.typed import read_as
from tgflow.cuda.clock import clock_of
from tgflow.graph import TemporalGraph
from tgflow.graph.batch import StepBatch
from tgflow.plan.count_lookup import CountHistory
from tgflow.plan.plan import Plan
from tgflow.report.compare.groups import Stopwatch
from tgflow.report.compare.lineup import Entrant
from tgflow.report.compare.score_log import ScoreLog
from tgflow.train.config import ContinualConfig, ExecutionConfig
from tgflow.train.finite import TrainingDiverged
from tgflow.train.progress import Progress
from tgflow.train.stepper import MicroBatch, Stepper
from tgflow.train.tasks.labels import EventLabels
from tgflow.train.trainer_state import load_learner, save_learner


class Participant(Component):
    """An entrant, with its own stepper, scores and clocks."""

    def __init__(
        self,
        entrant: Entrant,
        graph: TemporalGraph,
        config: ContinualConfig,
        execution: ExecutionConfig,
        watch: Stopwatch,
        counts: CountHistory,
        labels: EventLabels | None = None,
    ) -> None:
        self.entrant = entrant
        self.config = replace(config, seed=entrant.seed, **entrant.learning)
        self.scores = ScoreLog(graph.num_events, labels=labels is not None)
        predicts = labels is not None and labels.are_predicted_by(entrant.model)
        self._labels = labels if predicts else None
        self.figures = None
        if self._labels is not None:
            self.figures = self._labels.figures(pooled=False, scratch=execution.scratch)
        """Figures of predicted labels; None if it predicts none."""
        self.stepper = Stepper(
            entrant.model,
            graph,
            self.config,
            on_scores=self._keep_scores,
            figures=self.figures,
            labels=None if entrant.frozen_of is not None else self._labels,
            execution=replace(execution, beside=False),  # a frozen one is never learned
            task=None if self._labels is None else self._labels.task,
        )
        self.failure: dict[str, Any] | None = None
        self.is_waiting = entrant.frozen_of is not None
        """Whether it is a copy that was not made yet."""
        self._watch, self._counts = watch, counts
        self._commits = clock_of(self.stepper.learner.device)
        self._before = {"commit": 0.0, "preparation": 0.0}

    @property
    def key(self) -> str:
        """Label and seed."""
        return self.entrant.key

    @property
    def is_active(self) -> bool:
        """Whether it learns or is scored now: not dropped out, and not a copy to be made."""
        return self.failure is None and not self.is_waiting

    @property
    def num_updates(self) -> int:
        """Updates per micro-batch: 0 if it only predicts and stores."""
        return 0 if self.entrant.frozen_of is not None else self.stepper.num_updates

    def predict(self, batch: StepBatch, plan: Plan) -> None:
        """Score a micro-batch of `plan`; a participant that does not learn stores it, too."""
        with self._dropping_out(batch):
            self.stepper.predict(batch, plan)
        if not self.num_updates:
            self.store(batch)

    def learn(self, batch: StepBatch) -> None:
        """Take one update."""
        if self.is_active and self.num_updates:
            with self._dropping_out(batch):
                self.stepper.learn(batch)

    def store(self, batch: StepBatch) -> None:
        """Store the micro-batch in the model's state."""
        if self.is_active:
            with self._dropping_out(batch), self._commits.measuring():
                self.stepper.store(batch)

    def collect(self, *, everything: bool) -> None:
        """Process values that reached the host; drop out if one was not finite."""
        try:
            self.stepper.collect(everything=everything)
        except TrainingDiverged as found:
            self._drop_out(found, found.before[0])

    def freeze_from(self, origin: Participant) -> None:
        """Become a copy of `origin` as of now: parameters, memory, figures and scores."""
        origin.collect(everything=True)
        if origin.failure is not None:
            self.failure = origin.failure
            return
        held = Checkpoint({})
        save_learner(held, origin.stepper.learner)
        load_learner(self.stepper.learner, held)
        self.stepper.keep_past()
        if self.figures is not None and origin.figures is not None:
            origin.figures.save(held)
            self.figures.load(held)
        self.stepper.progress = deepcopy(origin.stepper.progress)
        self.stepper.resume_clocks()
        self.scores.take_over(origin.scores)
        now = origin._seconds()
        self._before = now | {"preparation": now["preparation"] - self._preparing()}
        self.is_waiting = False

    def result(self, test_start: int, position: int) -> dict[str, Any]:
        """Return its metrics, cost and final state, JSON-serializable."""
        model, labels = self.entrant.model, dict[str, float]()
        if self.figures is not None:
            labels = self.figures.result(with_intervals=True)
        facts = self.entrant.facts()
        facts["bytes"] |= {
            "memory": _state_bytes(model),
            "counts": self._counts.figures(position).get("counts_bytes", 0),
        }
        return {
            **facts,
            "failure": self.failure,
            "microseconds": self._microseconds(),
            **model.figures(),
            **self.stepper.result(test_start),
            **{f"prequential.{name}": value for name, value in labels.items()},
        }

    def save(self, writer: Checkpoint) -> None:
        """Save its individual state."""
        writer.note("failure", self.failure)
        writer.note("is_waiting", self.is_waiting)
        writer.note("seconds", self._seconds())
        writer.note("progress", self.stepper.progress.to_json())
        if self.is_active:
            save_learner(writer, self.stepper.learner)
        for each in (self.figures, self.stepper.late if self.is_active else None, self.scores):
            if each is not None:
                each.save(writer)

    def load(self, reader: Checkpoint) -> None:
        """Restore the state that was saved."""
        meta = reader.meta
        self.failure = read_as(dict[str, int | str] | None, meta.get("failure"), "failure")
        self.is_waiting = read_as(bool, meta.get("is_waiting"), "is_waiting")
        seconds = read_as(dict[str, float], meta.get("seconds"), "seconds")
        self._before = {
            name: read_as(float, seconds.get(name), f"seconds.{name}") for name in self._before
        }
        self.stepper.progress = read_as(Progress, meta.get("progress"), "progress")
        if self.is_active:
            load_learner(self.stepper.learner, reader)
            self.stepper.keep_past()
        for each in (self.figures, self.stepper.late if self.is_active else None, self.scores):
            if each is not None:
                each.load(reader)

    def _keep_scores(
        self,
        of: MicroBatch,
        positive: Tensor,
        negative: Tensor,
        rank: Tensor,
        classes: Tensor | None,
    ) -> None:
        label = None
        if self._labels is not None:
            label = self._labels.judged(torch.arange(of.start, of.stop), positive, classes)
        self.scores.add(of, positive, negative, rank, label)

    @contextmanager
    def _dropping_out(self, batch: StepBatch) -> Iterator[None]:
        try:
            yield
        except TrainingDiverged as error:
            self._drop_out(error, batch.host.begin)

    def _drop_out(self, error: TrainingDiverged, position: int) -> None:
        self.failure = {"at": position, "reason": str(error)}

    def _seconds(self) -> dict[str, float]:
        return {
            "commit": self._before["commit"] + self._commits.seconds,
            "preparation": self._before["preparation"] + self._preparing(),
        }

    def _preparing(self) -> float:
        """Return the seconds spent on its batches in this process, as if for it alone."""
        return self._watch.seconds(learns=self.num_updates > 0)

    def _microseconds(self) -> dict[str, float]:
        progress = self.stepper.progress
        seconds = {"compute": progress.compute_seconds} | self._seconds()
        out = {name: 1e6 * x / max(progress.num_events, 1) for name, x in seconds.items()}
        return out | {"all": sum(out.values())}


def _state_bytes(model: nn.Module) -> int:
    state: Any = getattr(model, "state", None)
    if state is None:
        return 0
    tensors = state.buffers() if isinstance(state, nn.Module) else state.state_dict().values()
    return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, torch.Tensor))
