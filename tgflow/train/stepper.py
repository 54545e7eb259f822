"""One model over micro-batches: each is predicted, then learned, then stored."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from tgflow.batch import AnyBatch
from tgflow.cuda.clock import WorkClock
from tgflow.graph import TemporalGraph
from tgflow.metrics import find_metrics
from tgflow.model import TemporalModel
from tgflow.train.config import ContinualConfig, ExecutionConfig
from tgflow.train.event_scores import EventScorer, EventScores
from tgflow.train.finite import BatchPlace, TrainingDiverged
from tgflow.train.learning_task import LearningTask, TaskFigures
from tgflow.train.losses import LossLike
from tgflow.train.optimizers import OptimizerLike, SchedulerLike
from tgflow.train.pending_steps import (
    LearnedStep,
    MicroBatch,
    OnScores,
    PendingSteps,
    step_values,
)
from tgflow.train.progress import Progress
from tgflow.train.reducer import AnyScores, SliceReducer, check_sliceable, score_values
from tgflow.train.step import StepResult, TrainStep

Answer = TypeVar("Answer")

MAX_LOST = 20
"""Micro-batches in a row that may be left out as not finite; then the parameters are lost."""


class Stepper:
    """Takes one model through micro-batches, and counts what came of it.

    Of each micro-batch: `predict`, then `learn` once for each update, then `store` and `finish`.

    Args:
        model: Model to train, on its device, memory included.
        graph: What batches are of.
        config: Settings.
        execution: How a GPU is used.
        preparation: The clock of what prepares batches.
        on_scores: Gets the scores of what was predicted, once they are on the host.
        reducer: Brings slices of batches together; None: all of them are computed here.
        scorer: Gets what was predicted before it is learned, for which a device and other ranks are
            waited for; None: nobody does.
        task: What is learned beside links; batches then come with `targets`.
        figures: Measures what was predicted of it.
        optimizer: As `ContinualTrainer`.
        lr_scheduler: As `ContinualTrainer`.
        loss: As `ContinualTrainer`.

    Raises:
        ValueError: If batches are cut into slices, and the model takes whole ones alone; or there
            is no such metric.
    """

    def __init__(
        self,
        model: TemporalModel,
        graph: TemporalGraph,
        config: ContinualConfig,
        execution: ExecutionConfig,
        preparation: WorkClock,
        on_scores: OnScores | None = None,
        reducer: SliceReducer | None = None,
        scorer: EventScorer | None = None,
        task: LearningTask | None = None,
        figures: TaskFigures | None = None,
        optimizer: OptimizerLike | None = None,
        lr_scheduler: SchedulerLike | None = None,
        loss: LossLike | None = None,
    ) -> None:
        check_sliceable(model, config.slices)
        self.model = model
        self.config = c = config
        self.learner = TrainStep(
            model,
            seed=c.seed,
            learning_rate=c.learning_rate,
            weight_decay=c.weight_decay,
            grad_clip=c.grad_clip,
            loss=c.loss if loss is None else loss,
            optimizer=c.optimizer if optimizer is None else optimizer,
            lr_scheduler=c.lr_scheduler if lr_scheduler is None else lr_scheduler,
            execution=execution,
            num_nodes=lambda: graph.num_nodes,
            checks_at_once=c.on_nan == "skip",
            reducer=reducer,
            task=task,
        )
        self.num_updates = c.updates if self.learner.learns else 0
        """Updates of each micro-batch: none for a model without parameters."""
        self.keep_past()
        self.progress = Progress.new(c.half_life)
        self.steps = PendingSteps(
            self.learner,
            preparation,
            c.hist_negatives,
            c.warmup,
            on_scores,
            figures,
            find_metrics(c.metrics),
        )
        self._preparation = preparation
        self._scorer = scorer
        self._event_scores: EventScores | None = None
        self._on_host: dict[str, Tensor] = {}
        self._lost = 0
        self._places: list[BatchPlace] = []
        self._num_fallbacks = 0
        self._scored: list[tuple[str, AnyScores, Tensor | None]] = []
        self._predicted: AnyScores | None = None
        self._learned: StepResult | None = None

    def keep_past(self) -> None:
        """Let the model's state keep what replayed events read of it."""
        num_events = kept_past(self.config) if self.num_updates else 0
        if self.model.state is not None and num_events:
            self.model.state.keep_past(num_events)

    def resume_clocks(self) -> None:
        """Start to take the time."""
        self.progress.resume(self.learner.compute_seconds, self._preparation.seconds)

    def predict(self, batch: AnyBatch) -> None:
        """Score a micro-batch as it comes.

        Raises:
            TrainingDiverged: If a score is not finite, and that is not to be skipped.
        """
        self._places, self._num_fallbacks = [BatchPlace.of(batch)], batch.num_fallbacks
        self._learned = None
        self._predicted = scores = self._tried(self._scores_of, batch)
        self._scored = [] if scores is None else [("", scores, None)]
        if self._scorer is not None:
            values = None if scores is None else self._on_host
            self._event_scores = self._scorer.score(batch.host, values)

    def _scores_of(self, batch: AnyBatch) -> AnyScores:
        """Return the scores of a micro-batch: on the host and finite, if they are to be given."""
        scores = self.learner.predict(batch)
        if self._scorer is not None:
            self.learner.settle(batch)
            self._on_host = {name: x.cpu() for name, x in score_values(scores).items()}
            if self._on_host:
                self.learner.check_late(self._places[0], **self._on_host)
        return scores

    def learn(self, batch: AnyBatch) -> None:
        """Take one update from the micro-batch and what is replayed with it.

        Raises:
            TrainingDiverged: If the loss or a score is not finite, and that is not to be skipped.
        """
        update = len(self._places)
        self._places.append(BatchPlace.of(batch))
        if self._predicted is None:
            return
        learn = partial(self.learner.learn, stores=update == self.num_updates)
        self._learned = learned = self._tried(learn, batch)
        if learned is not None:
            self._scored.append((f"{update}.", learned.scores, learned.loss))

    def store(self, batch: AnyBatch) -> None:
        """Store the new events in the model's state.

        Args:
            batch: What was learned from last; or predicted, where nothing is learned.

        Raises:
            TrainingDiverged: Late, if a score that was predicted is not finite, and that is not to
                be skipped.
        """
        if self._predicted is None:
            return
        scores: AnyScores | None = self._predicted
        if len(self._places) > 1:
            scores = None if self._learned is None else self._learned.scores
        self._tried(partial(self.learner.commit, scores=scores), batch)
        if self._predicted is not None:
            self._lost = 0

    def finish(self, of: MicroBatch) -> None:
        """Put the micro-batch among those whose records are to come."""
        if self._scorer is not None:
            self._scorer.settle()
        ended = time.perf_counter()
        step = LearnedStep(of, self._places, self._num_fallbacks, ended, self._event_scores)
        values: dict[str, Tensor] = {}
        for scored in self._scored:
            values |= step_values(*scored)
        self.steps.put(step, values)
        self._scored, self._predicted, self._learned = [], None, None
        self.learner.has_changed = False

    def collect(self, *, everything: bool) -> None:
        """Make records of what has come to the host.

        Raises:
            DivergedStep: If something was not finite, and nobody has waited for it.
        """
        self.steps.collect(self.progress, everything=everything)

    def _tried(self, act: Callable[[AnyBatch], Answer], batch: AnyBatch) -> Answer | None:
        """Return what `act` does with `batch`; None if that is not finite, and to be left out."""
        try:
            return act(batch)
        except TrainingDiverged as error:
            self._lost += 1
            if self.config.on_nan == "stop" or self._lost > MAX_LOST:
                raise
            self.progress.num_skipped += 1
            if error.is_late:  # the micro-batch is as one whose prediction has raised
                self._predicted, self._scored = None, []
            return None

    def result(self, test_start: int) -> dict[str, Any]:
        """Return the metrics so far; `test.*` are of the events from `test_start` on."""
        out: dict[str, Any] = {}
        for name, since in (("prequential", None), ("test", test_start)):
            means = self.progress.timeline.mean(since)
            out |= {f"{name}.{metric}": value for metric, value in means.items()}
        return out | self.progress.summary()


def replay_past(config: ContinualConfig) -> int:
    """Return how many events back a model's state is read by training with `config`."""
    return config.replay_horizon if config.replay_ratio > 0 and config.updates > 0 else 0


def kept_past(config: ContinualConfig) -> int:
    """Return of how many events a model's state keeps what they have changed.

    What the oldest event of replay reads may have been overwritten with the micro-batch that the
    event is in, so this counts too.
    """
    past = replay_past(config)
    return past + config.batch_size if past else 0
