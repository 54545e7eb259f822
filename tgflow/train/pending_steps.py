"""Micro-batches that were learned, on their way to records: their scores come to the host later."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from tgflow.cuda.clock import WorkClock
from tgflow.metrics import Metrics, average_precision, batch_metrics, measure, mrr, ranks
from tgflow.train.event_scores import EventScores
from tgflow.train.finite import BatchPlace, TrainingDiverged
from tgflow.train.learning_task import TaskFigures
from tgflow.train.observe import StepRecord
from tgflow.train.progress import Progress
from tgflow.train.reducer import AnyScores, score_values
from tgflow.train.results import Results, Values
from tgflow.train.step import TrainStep


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch of a stream, whoever learns from it."""

    before: tuple[int, int, int]
    """The trainer's position, segment and index before it."""
    stop: int
    """The trainer's position after it."""
    t: int
    """Time of its last event."""
    lag_events: int
    lag_seconds: float
    arrived: float

    @property
    def start(self) -> int:
        """The trainer's position before it."""
        return self.before[0]


@dataclass(frozen=True, slots=True, eq=False)
class LearnedStep:
    """What the host knows of a micro-batch that was stored, before its scores have come."""

    of: MicroBatch
    places: list[BatchPlace]
    """Of what was predicted, then of what each update learned from."""
    num_fallbacks: int
    ended: float
    scores: EventScores | None = None
    """Of what was predicted, if they were asked for and have come."""


OnScores: TypeAlias = Callable[[MicroBatch, Tensor, Tensor, Tensor], None]
"""Gets a micro-batch, the scores of its events and of their negatives on the host, and the ranks of
the events among these."""


class DivergedStep(Exception):
    """Something of a micro-batch was not finite, which was found out later.

    Args:
        step: The micro-batch.
        error: What is to be raised.
    """

    def __init__(self, step: LearnedStep, error: TrainingDiverged) -> None:
        super().__init__(str(error))
        self.step, self.error = step, error


class PendingSteps:
    """The micro-batches whose records were not yielded yet, in order.

    Args:
        learner: What learned them.
        preparation: The clock of what prepared them.
        num_hist: How many of the last negatives that are predicted are historical, and ranked apart
            from the others.
        warmup: Micro-batches that start before this log position are not measured.
        on_scores: Gets the scores of what was predicted, `[B]` and `[B, m]` without the historical
            negatives, of each micro-batch that is measured.
        figures: Of a task; takes in each micro-batch that is measured.
        metrics: Metrics of one's own.
    """

    def __init__(
        self,
        learner: TrainStep,
        preparation: WorkClock,
        num_hist: int = 0,
        warmup: int = 0,
        on_scores: OnScores | None = None,
        figures: TaskFigures | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._learner, self._preparation = learner, preparation
        self._figures, self._metrics = figures, {} if metrics is None else metrics
        self._num_hist, self._warmup = num_hist, warmup
        self._on_scores = on_scores
        self._results: Results[LearnedStep] = learner.new_results()
        self._records: deque[StepRecord] = deque()

    def __len__(self) -> int:
        return len(self._results) + len(self._records)

    def put(self, step: LearnedStep, values: Values) -> None:
        """Take a micro-batch with what `step_values` has named of each of its batches."""
        self._results.put(step, values)

    def records(self) -> Iterator[StepRecord]:
        """Yield the records that there are."""
        while self._records:
            yield self._records.popleft()

    def collect(self, progress: Progress, *, everything: bool) -> None:
        """Make records of what has come to the host, and count it in `progress`.

        Raises:
            DivergedStep: If something was not finite; what came later is forgotten.
        """
        for step, values in self._results.take(everything=everything):
            try:
                self._check(step, values)
            except TrainingDiverged as error:
                self._results.clear()
                raise DivergedStep(step, error) from None
            self._records.append(self._record(progress, step, values))

    def _check(self, step: LearnedStep, values: Values) -> None:
        """Raise TrainingDiverged if something was not finite, and nothing has waited for that."""
        for number, place in enumerate(step.places):
            prefix = f"{number}." if number else ""
            if prefix + "positive" in values:
                positive, negative = values[prefix + "positive"], values[prefix + "negative"]
                loss, classes = values.get(prefix + "loss"), values.get(prefix + "classes")
                self._learner.check_late(place, positive, negative, loss, classes)

    def _measured(self, step: LearnedStep, positive: Tensor, negative: Tensor) -> dict[str, float]:
        num_random = negative.shape[1] - self._num_hist
        ranked = negative[:, :num_random]
        rank = ranks(positive, ranked)
        if self._on_scores is not None:
            self._on_scores(step.of, positive, ranked, rank)
        measured = batch_metrics(positive, ranked, rank) if ranked.numel() else {}
        if self._num_hist and len(positive):
            measured["mrr_hist"] = mrr(positive, negative[:, num_random:])
        return measured | measure(self._metrics, positive, ranked)

    def _record(self, progress: Progress, step: LearnedStep, values: Values) -> StepRecord:
        measured: dict[str, float] = {}
        if "positive" in values and step.of.start >= self._warmup:
            measured = self._measured(step, values["positive"], values["negative"])
            if self._figures is not None:
                host, positive = step.places[0].host, values["positive"]
                measured |= self._figures.add(host, positive, values.get("classes"))
        latest = f"{len(step.places) - 1}."
        loss = float(values[f"{latest}loss"]) if f"{latest}loss" in values else None
        num_new = step.places[-1].num_new
        progress.add(
            step.of.start,
            step.of.stop,
            measured,
            loss=loss,
            replay_ap=_replay_ap(values, latest, num_new)
            if f"{latest}positive" in values
            else None,
            num_fallbacks=step.num_fallbacks,
            ended=step.ended,
            compute_seconds=self._learner.compute_seconds,
            preparation_seconds=self._preparation.seconds,
        )
        return StepRecord(
            index=step.places[-1].index,
            start=step.of.start,
            stop=step.of.stop,
            t=step.of.t,
            loss=loss,
            metrics=measured,
            running=progress.running.means(),
            prequential=progress.timeline.mean(),
            forgetting=progress.forgetting(),
            num_fallbacks=step.num_fallbacks,
            lag_events=step.of.lag_events,
            lag_seconds=step.of.lag_seconds,
            freshness_seconds=time.perf_counter() - step.of.arrived,
            seconds=progress.step_seconds,
            events_per_second=progress.events_per_second(),
            overhead_share=progress.overhead_share(),
            scores=step.scores,
        )


def step_values(prefix: str, scores: AnyScores, loss: Tensor | None) -> dict[str, Tensor]:
    """Return what the host is to know of a batch, by name.

    Args:
        prefix: "" for what was predicted, "1." for the first update, and so on.
        scores: Of the batch.
        loss: Of an update; None for what was predicted.
    """
    values = score_values(scores) | ({} if loss is None else {"loss": loss})
    return {prefix + name: x for name, x in values.items()}


def _replay_ap(values: Values, prefix: str, num_new: int) -> float | None:
    positive = values[f"{prefix}positive"][num_new:]
    if not len(positive):
        return None
    return average_precision(positive, values[f"{prefix}negative"][num_new:, 0])
