"""The batches of an offline training, prepared ahead: those of a plan, slices of them, or parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tgflow.batch import AnyBatch
from tgflow.cuda.clock import WorkClock
from tgflow.plan.in_order import Task
from tgflow.plan.loader import BatchSource, Loader, joined_shares, sliced_tasks
from tgflow.plan.parts import BatchPart, PartedPlan
from tgflow.plan.plan import Plan
from tgflow.train.config import OfflineConfig
from tgflow.train.finite import BatchPlace
from tgflow.train.observe import BatchRecord, Callback, Stage
from tgflow.train.step import TrainStep


class OfflineLoading:
    """Loads batches for a learner.

    Args:
        config: Settings of the training.
        learner: Where batches are to come to, and which slices of them it wants.
        captures: Whether steps are captured.
        clock: Takes the time of what is prepared.
    """

    def __init__(
        self, config: OfflineConfig, learner: TrainStep, captures: bool, clock: WorkClock
    ) -> None:
        self._config, self._learner = config, learner
        self._captures, self._clock = captures, clock

    def of_plan(self, plan: BatchSource, epoch: int) -> Iterable[AnyBatch]:
        """Return the batches of an epoch; slices of them, unless they come in parts."""
        wanted = self._learner.reducer.wanted(self._config.slices)
        if self._config.slices == 1 or isinstance(plan, PartedPlan):
            return self.of_tasks(plan, ((epoch, index) for index in range(len(plan))))
        tasks = sliced_tasks(((epoch, index) for index in range(len(plan))), wanted)
        made: Any = iter(self.of_tasks(plan, tasks, len(wanted)))
        return joined_shares(made, len(wanted))

    def of_evaluation(self, plan: Plan) -> tuple[Iterable[AnyBatch], Sequence[BatchPart] | None]:
        """Return the batches of a plan to measure, and the parts that they come in.

        They come in parts if they have many negatives, which are fixed; None: as they are.
        """
        most = self._config.max_pairs
        is_fixed = self._config.fixed_negatives is not None
        if not is_fixed or plan.batch_size * (1 + plan.negatives.num) <= most:
            return self.of_plan(plan, 0), None
        with_state = self._learner.model.state is not None
        parted = PartedPlan(plan, most, with_storing=with_state)
        return self.of_plan(parted, 0), parted.parts

    def of_tasks(self, plan: BatchSource, tasks: Iterable[Task], num_wanted: int = 1) -> Loader:
        """Return the batches of tasks, of each of which `num_wanted` slices come."""
        c = self._config
        return Loader.of_tasks(
            plan,
            tasks,
            num_threads=c.num_threads,
            lookahead="auto" if c.lookahead == "auto" else c.lookahead * num_wanted,
            device=self._learner.device,
            captures=self._captures,
            clock=self._clock,
        )


def notifier(observer: Callback, stage: Stage, epoch: int, num_batches: int) -> Callable[..., None]:
    """Return what notifies an observer of a batch, and of its loss if there is one."""

    def notify(place: BatchPlace, loss: float | None = None) -> None:
        observer.on_batch(BatchRecord(stage, epoch, place.index, num_batches, place.num_new, loss))

    return notify
