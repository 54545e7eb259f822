"""One training step: score, loss, backward, clip, optimizer step, store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors

from tgflow.base.keys import KeyDomain, derive_key
from tgflow.cuda.clock import clock_of
from tgflow.cuda.device import device_of, has_device
from tgflow.graph.batch import Batch, StepBatch
from tgflow.graph.stream_state import DeviceState
from tgflow.nn._native import note_non_finite
from tgflow.nn.dropout import DropoutKeys, seeded_draws
from tgflow.nn.linear import check_precision, product_precision
from tgflow.nn.model import Scores, TemporalModel, device_of_model
from tgflow.train.captured import CapturedCalls, is_capturable, result_tensors, without_carry
from tgflow.train.config import ExecutionConfig, TrainingConfig
from tgflow.train.finite import BatchPlace, TrainingDiverged, check_finite, elsewhere
from tgflow.train.losses import LossLike, loss_of, parameters_of
from tgflow.train.optimizers import (
    OptimizerLike,
    SchedulerLike,
    optimizer_of,
    scheduler_of,
    skips_on_device,
)
from tgflow.train.results import Results

if TYPE_CHECKING:
    from tgflow.train.tasks.labels import LabelTask

Result = TypeVar("Result", bound=tuple[Any, ...])

_WHY_GIVEN = {
    "weight": ("the events have weights", "read the stream without weight=..."),
    "log_q": ("each event has a list of negatives", 'learn from negatives="random:1"'),
}
"""What a loss must take, and the alternative."""


class StepScores(Protocol):
    """Scores of a step: `Scores` of a whole batch, or those of slices, which may come later."""

    def named(self) -> dict[str, Tensor]:
        """Return all scores by name; empty if only another rank has them."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Loss and scores of one update."""

    loss: Tensor
    """float32 `[]`: of the batch before the update; see `tgflow.train.losses`."""
    scores: StepScores
    """Detached logits in training mode (with dropout), and the inputs of `messages`."""


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """Values of a prediction, update 0, and of an update, by its number and their name."""

    values: dict[tuple[int, str], Tensor]
    flat: Tensor
    """All of them in one tensor."""


class TrainStep:
    """Trains a model batch by batch: `predict`, `learn` and `commit`, in this order or part of it.

    For parameter-free models `learn` only returns loss and scores. On a GPU, work on batches whose
    shapes recur is captured, and replayed as a CUDA graph. `SlicedStep` also takes batches in
    slices, which ranks may share.

    Dropout (`tgflow.nn.Dropout`) is keyed by (seed, epoch, index), so a step is the same on every
    device and after a resume. torch's default generators are seeded for the step and restored
    afterwards, so another thread that draws from them meanwhile needs its own generator. Captured
    steps cannot seed them: such draws differ after a resume.

    On the CPU a value that is not finite raises `TrainingDiverged` before anything has changed. On
    a device the check does not synchronize: from the first such batch on `is_lost` is set there,
    and no step changes parameters, optimizer or state. `check_late` then raises for the batch once
    its scores and loss are on the host.

    Args:
        model: Model to train.
        config: Seed, optimizer, loss and clipping; `optimizer`, `lr_scheduler` and `loss` take
            their place.
        num_nodes: Returns how many nodes there are: a state on a device reads no others.
        checks_at_once: Raise at once for non-finite values, also on a device.
    """

    leads = True
    """Whether this process receives the scores of all rows."""
    waits = False
    """Whether a step waits for other ranks."""

    def __init__(
        self,
        model: TemporalModel,
        config: TrainingConfig,
        *,
        num_nodes: Callable[[], int] | None = None,
        optimizer: OptimizerLike | None = None,
        lr_scheduler: SchedulerLike | None = None,
        loss: LossLike | None = None,
        execution: ExecutionConfig | None = None,
        checks_at_once: bool = False,
        task: LabelTask | None = None,
    ) -> None:
        self.model, self.config, self.task = model, config, task
        named = model.loss if config.loss is None else config.loss
        self.loss = loss_of(named if loss is None else loss)
        self._loss_takes = parameters_of(self.loss)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.device = device_of_model(model)
        """Device of the model's parameters, or else its buffers; the CPU if it has neither."""
        self.optimizer: torch.optim.Optimizer | None = None
        """None for a model without trainable parameters."""
        self.lr_scheduler: torch.optim.lr_scheduler.LRScheduler | None = None
        """None for a constant learning rate."""
        if self.parameters:
            optimizer = config.optimizer if optimizer is None else optimizer
            self.optimizer = optimizer_of(optimizer, self.parameters, config)
            lr_scheduler = config.lr_scheduler if lr_scheduler is None else lr_scheduler
            self.lr_scheduler = scheduler_of(lr_scheduler, self.optimizer)
        self.execution = execution = ExecutionConfig() if execution is None else execution
        check_precision(execution.precision, self.device)
        self._num_nodes, self._room = num_nodes, 0
        state = model.state
        self.state = state if isinstance(state, DeviceState) else None
        waits = not has_device(self.device) or checks_at_once or state is not self.state
        # Ranks learn of each other's values with the gradients.
        waits |= self.waits and self.optimizer is None
        # Only fused Adam and AdamW can leave a step out on the device (`found_inf`), and a schedule
        # must not advance for a skipped step.
        waits |= self.optimizer is not None and not skips_on_device(self.optimizer)
        waits |= self.lr_scheduler is not None
        self.is_lost = None if waits else torch.zeros((), dtype=torch.bool, device=self.device)
        """bool `[]` on the device: whether something was not finite; None where that raises."""
        self.dropout = DropoutKeys(model)
        self._checked = False
        self.clock = clock_of(self.device)
        """Adds up the time in forward, backward and optimizer."""
        self.before_update: Callable[[], object] = lambda: None
        """Called before parameters change; an error that it raises leaves them as they are."""
        self.has_changed = False
        """Whether parameters or state have changed since this was last set to False."""
        self._calls = self._captured_calls() if execution.capture else None

    def predict(self, batch: StepBatch) -> StepScores:
        """Return the logits of `batch` in evaluation mode, without gradients; changes nothing."""
        with self.limited_threads():
            return self._predict(batch)

    def _predict(self, batch: StepBatch) -> StepScores:
        assert isinstance(batch, Batch)
        self.check_batch(batch)
        return self.run("predict", batch, self._score)[0]

    @torch.no_grad()
    def _score(self, batch: Batch) -> tuple[Scores]:
        self.set_mode(training=False)
        scores: Scores = self.model(batch)
        self.check_finite(batch, scores)
        return (scores,)

    def learn(self, batch: StepBatch, *, stores: bool = True) -> StepResult:
        """Take one optimizer step on all events of `batch`; memory is not updated."""
        with self.limited_threads():
            result = self._learn(batch, stores=stores)
        # Outside of the step: a replayed CUDA graph runs no Python.
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()
        return result

    def _learn(self, batch: StepBatch, *, stores: bool) -> StepResult:
        assert isinstance(batch, Batch)
        self.check_batch(batch)
        key = self.key_of(batch)
        scores, loss = self.run("learn", batch, self._training_step, key=key)
        self.has_changed |= self.learns  # a replay does not set it
        return StepResult(loss, scores)

    def _training_step(self, batch: Batch) -> tuple[Scores, Tensor]:
        """Score a batch, and take an optimizer step by the gradients of its loss."""
        self.set_mode(training=True)
        scores = self.model(batch)
        loss = self.loss_of(batch, scores)
        self.check_finite(batch, scores, loss)
        self.backward(loss)
        return detached(scores), loss.detach()

    def backward(self, loss: Tensor) -> None:
        if self.optimizer is not None:
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.update()

    def update(self) -> None:
        """Clip the gradients, and take the optimizer step."""
        if self.optimizer is None:
            return
        self.before_update()
        if self.config.grad_clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.config.grad_clip)
        if self.is_lost is not None:
            self.optimizer.found_inf = self.is_lost.float()  # type: ignore[attr-defined]
        self.has_changed = True
        self.optimizer.step()

    def commit(self, batch: StepBatch, scores: StepScores | None) -> None:
        """Store the new events of `batch`, by its scores; None: by those of the model now."""
        assert isinstance(batch, Batch)
        if scores is None:
            self.check_batch(batch)
            self.set_mode(training=False)
            with torch.no_grad(), self.computing():
                scores = self.model(batch)
        assert isinstance(scores, Scores)
        with self.touching_state():
            self.has_changed = True
            self.model.commit(batch, scores)

    def take(
        self, batch: StepBatch, learn: Callable[[StepBatch], StepResult] | None
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Learn a batch, or predict it without `learn`, and commit it; return its scores and loss.

        By name and, if a replay made them, in one tensor, for `Results.put`.
        """
        if isinstance(batch, Batch) and batch.lent is not None:
            replayed = self.step(batch, None) if learn is None else self.step(None, batch)
            if replayed is not None:
                return {name: x for (_, name), x in replayed.values.items()}, replayed.flat
        values: dict[str, Tensor] = {}
        if learn is None:
            scores = self.predict(batch)
        else:
            step = learn(batch)
            scores, values["loss"] = step.scores, step.loss
        self.commit(batch, scores)
        return scores.named() | values, None

    def step(self, predicted: Batch | None, learned: Batch | None) -> CapturedStep | None:
        """Predict a batch, learn another one and commit the last of them, all by one replay.

        Returns their scores and loss, which the next call overwrites; None if that is not possible.
        """
        calls, name, work, batches = self._calls, "step", self._whole_step, list[Batch]()
        for each in (predicted, learned):
            batches += () if each is None else (each,)
        memory = [*map(_memory_of, batches)]
        if calls is None or None in memory:
            return None
        if not self._checked:
            self.check_batch(batches[0])
        if learned is not None:
            if not is_capturable(learned, learns=True):
                return None
            self.dropout.set(self.key_of(learned))
        if predicted is None:
            name, work = "learn, commit", partial(self._whole_step, None)
        with self.clock.measuring():
            result = calls.call(name, batches, memory, work, _flat)
        self.has_changed = True
        return result

    def _whole_step(self, predicted: Batch | None, learned: Batch | None = None) -> CapturedStep:
        values: dict[tuple[int, str], Tensor] = {}
        if predicted is not None:
            (scores,) = self._score(predicted)
            values |= {(0, name): x for name, x in scores.named().items()}
        if learned is not None:
            scores, values[1, "loss"] = self._training_step(learned)
            values |= {(1, name): x for name, x in scores.named().items()}
        batch = predicted if learned is None else learned
        assert batch is not None
        with torch.no_grad():
            self.model.commit(batch, scores)
        return CapturedStep(values, _flatten_dense_tensors([*values.values()]))  # type: ignore[no-untyped-call]

    def flush(self, batch: StepBatch) -> None:
        """Complete the exchange of the scores of a batch with other ranks, if there are any."""

    def run(
        self,
        name: str,
        batch: Batch,
        work: Callable[[Batch], Result],
        kept: Callable[[Any], Any] = without_carry,
        key: int | None = None,
    ) -> Result:
        """Return `work(batch)`, scores first, or the same from a replay of a CUDA graph.

        Args:
            name: Of the work.
            batch: The batch.
            work: Function of the model and the batch.
            kept: Copies what the next replay must not overwrite.
            key: Of random draws, to learn; None to predict.
        """
        if key is not None:
            self.dropout.set(key)
        calls = self._calls
        if calls is None or not is_capturable(batch, learns=key is not None):
            draws = nullcontext() if key is None else seeded_draws(key, self.device)
            with self.computing(), draws:
                return work(batch)
        with self.clock.measuring():
            result = calls.call(name, [batch], [batch.memory], work, result_tensors)
            return kept(result) if calls.was_replay else result

    def _captured_calls(self) -> CapturedCalls | None:
        """Return the CUDA graph capture, if no captured step synchronizes or moves memory."""
        state = self.state
        if self.is_lost is None:
            return None
        if state is not None and not (isinstance(state, nn.Module) and state.capturable):
            return None
        device = device_of(self.device)
        return CapturedCalls(device, state, self.make_room, self.working, self.idle)

    def loss_of(self, batch: Batch, scores: Scores) -> Tensor:
        """Return the loss of the scores of a batch, by its weights and the numbers of negatives."""
        log_q, mask = batch.log_q, batch.negative_mask
        if log_q is None and mask is not None:
            log_q = mask.float().log().to(scores.negative.device)
        columns = {"weight": batch.weight, "log_q": log_q}
        given = {name: column for name, column in columns.items() if column is not None}
        for each in given.keys() - self._loss_takes:
            name = getattr(self.loss, "__name__", type(self.loss).__name__)
            why = _WHY_GIVEN[each]
            raise ValueError(
                f"the loss {name} takes no {each}, but {why[0]}; define it as "
                f"{name}(scores, {each}=None), or {why[1]}"
            )
        loss = self.loss(scores, **given)
        return loss if self.task is None else self.task.loss(loss, scores, batch, self.model)

    @property
    def learns(self) -> bool:
        """Whether there are parameters to train; else one pass over the events is enough."""
        return self.optimizer is not None

    @property
    def compute_seconds(self) -> float:
        """Time in forward, backward and optimizer; the rest is overhead."""
        return self.clock.seconds

    def key_of(self, batch: Batch) -> int:
        key = derive_key(self.config.seed, batch.epoch, batch.index)
        return key if batch.slice is None else derive_key(key, KeyDomain.SLICE, batch.slice.number)

    def check_batch(self, batch: Batch) -> None:
        """Raise for the first batch if its features have other widths than the model's."""
        if not self._checked:
            self.model.check_widths(batch)
            self._checked = True

    def set_mode(self, *, training: bool) -> None:
        if self.model.training != training:  # a walk over all modules
            self.model.train(training)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Context manager for the model's computation: timing, precision and state access."""
        with self.clock.measuring(), self.working():
            yield

    @contextmanager
    def working(self) -> Iterator[None]:
        """Context manager for the model's operations: precision, state access, keyed dropout."""
        precise = product_precision(self.execution.precision, self.device)
        with self.dropout.keyed(), self.touching_state(), precise:
            yield

    def limited_threads(self) -> AbstractContextManager[object]:
        """Context manager that limits torch to one thread for a model that only reads counts.

        Its operations are short, and torch's other threads would spin between them on the cores
        that count.
        """
        stack = ExitStack()
        if not self.model.reads_nodes and (before := torch.get_num_threads()) > 1:
            torch.set_num_threads(1)
            stack.callback(torch.set_num_threads, before)
        return stack

    def make_room(self) -> None:
        """Make the state hold all nodes, so that it does not move until there are more.

        A state that was replaced since is detected by its captured calls, and covers them again.
        """
        if self.state is None or self._num_nodes is None:
            return
        if (num := self._num_nodes()) != self._room:
            with self.state.covering(num):
                self._room = num

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Context manager for steps on a device that change no parameters, optimizer or state."""
        assert self.is_lost is not None
        before = self.has_changed, self.is_lost.clone()
        self.is_lost.fill_(True)
        try:
            yield
        finally:
            self.has_changed = before[0]
            self.is_lost.copy_(before[1])

    @contextmanager
    def touching_state(self) -> Iterator[None]:
        """Context manager for reading or writing the model's state; does not synchronize."""
        with ExitStack() as stack:
            if self.state is not None and has_device(self.device):
                if self._num_nodes is not None:
                    stack.enter_context(self.state.covering(self._num_nodes()))
                if self.is_lost is not None:
                    stack.enter_context(self.state.unless(self.is_lost))
            yield

    def check_finite(self, batch: Batch, scores: Scores, loss: Tensor | None = None) -> None:
        """Raise if a value is not finite; on a device set its flag instead."""
        if self.is_lost is None:
            place = BatchPlace.of(batch)
            check_finite(place, scores.positive, scores.negative, loss, scores.classes)
            return
        values = scores.positive, scores.negative, scores.classes, loss
        note_non_finite([x for x in values if x is not None], self.is_lost)

    def check_late(self, place: BatchPlace, values: Mapping[str, Tensor]) -> None:
        """Check the scores and the loss of a step on the host, if nothing synchronized on them."""
        if self.is_lost is None:
            return
        try:
            if "positive" not in values:  # of a rank that has only the loss
                raise elsewhere(place)
            check_finite(place, **values)
        except TrainingDiverged:
            self.is_lost.zero_()
            raise

    def new_results(self) -> Results[Any]:
        """Return the transfer of scores and losses to the host, delayed on a device."""
        device = None if self.is_lost is None else self.device
        return Results(device, together=self.waits)


_memory_of = attrgetter("memory")


def _flat(step: CapturedStep) -> list[Tensor]:
    return [step.flat]


def detached(scores: Scores) -> Scores:
    classes = None if scores.classes is None else scores.classes.detach()
    return Scores(scores.positive.detach(), scores.negative.detach(), scores.carry, classes)
