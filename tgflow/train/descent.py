"""A model that is trained, where it is: what encloses its passes, and the optimizer's step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tgflow.batch import Batch
from tgflow.choices import Loss
from tgflow.cuda.clock import clock_of
from tgflow.cuda.devices import device_of, has_device
from tgflow.model import Scores, TemporalModel, device_of_model
from tgflow.nn.dropout import DropoutKeys
from tgflow.state import DeviceState
from tgflow.train.captured import CapturedCalls
from tgflow.train.config import ExecutionConfig
from tgflow.train.finite import BatchPlace, TrainingDiverged, check_finite
from tgflow.train.learning_task import LearningTask
from tgflow.train.losses import loss_of
from tgflow.train.reducer import LocalReducer, SliceReducer
from tgflow.train.results import ReadyResults, ResultRing, Results

_MATMUL_PRECISION = {"fp32": "highest", "tf32": "high"}


class ModelDescent:
    """What steps of a model have in common; takes what `tgflow.train.learner.Learner` takes."""

    def __init__(
        self,
        model: TemporalModel,
        *,
        seed: int,
        learning_rate: float,
        weight_decay: float = 0.0,
        grad_clip: float | None = None,
        loss: Loss | None = None,
        execution: ExecutionConfig | None = None,
        num_nodes: Callable[[], int] | None = None,
        checks_at_once: bool = False,
        reducer: SliceReducer | None = None,
        task: LearningTask | None = None,
    ) -> None:
        self.model = model
        self.task = task
        self.seed = seed
        self.grad_clip = grad_clip
        self.reducer: SliceReducer = LocalReducer() if reducer is None else reducer
        self._loss = loss_of(model.loss if loss is None else loss)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self.device = device_of_model(model)
        """Where the model's parameters are, or else its buffers; the CPU for a model of neither."""
        is_cuda = self.device.type == "cuda"
        self.optimizer: torch.optim.Adam | None = None
        """None for a model without parameters that can be learned."""
        if self._parameters:
            self.optimizer = torch.optim.Adam(
                self._parameters,
                lr=learning_rate,
                weight_decay=weight_decay,
                fused=True,
                capturable=is_cuda,
            )
        execution = ExecutionConfig() if execution is None else execution
        self._precision = _MATMUL_PRECISION[execution.precision] if is_cuda else None
        self._num_nodes = num_nodes
        state = model.state
        self._state = state if isinstance(state, DeviceState) else None
        waits = self.device.type == "cpu" or checks_at_once or state is not self._state
        waits |= not isinstance(self.reducer, LocalReducer)  # as what others send is waited for
        self.is_lost = None if waits else torch.zeros((), dtype=torch.bool, device=self.device)
        """bool `[]` on the device: whether something was not finite; None where that raises."""
        self._dropout = DropoutKeys(model)
        is_captured = execution.capture and task is None  # a task computes with what the host adds
        self._calls = self._captured_calls() if is_captured else None
        self._replayed: tuple[str, Scores, Scores] | None = None
        """If a replay made the latest scores: of what, as it left them, and as returned."""
        self._checked = False
        self._clock = clock_of(self.device)
        self.has_changed = False
        """Whether parameters or state have changed since whoever steps has last set this."""

    def _captured_calls(self) -> CapturedCalls | None:
        """Return what captures steps, if nothing in them waits or moves."""
        state = self._state
        if self.is_lost is None or not has_device(self.device):
            return None
        if state is not None and not (isinstance(state, nn.Module) and state.capturable):
            return None
        tensors = (list) if state is None else (lambda: list(state.buffers()))
        return CapturedCalls(device_of(self.device), tensors)

    @property
    def learns(self) -> bool:
        """Whether there is anything to learn; else one pass over the events is as good as many."""
        return self.optimizer is not None

    @property
    def compute_seconds(self) -> float:
        """Time in forward, backward and optimizer; all else is a trainer's overhead."""
        return self._clock.seconds

    @contextmanager
    def _evaluating(self, batch: Batch) -> Iterator[None]:
        """Enclose the scoring of `batch` in evaluation mode, without gradients."""
        self._check(batch)
        self._set_mode(training=False)
        with torch.no_grad(), self._computing():
            yield

    def _check(self, batch: Batch) -> None:
        """Refuse the first batch if its features have other widths than the model's."""
        if not self._checked:
            self.model.check_widths(batch)
            self._checked = True

    def _update(self) -> None:
        """Take a step of the optimizer by the parameters' gradients, if there are parameters."""
        if self.optimizer is None:
            return
        if self.grad_clip is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self.grad_clip)
        if self.is_lost is not None:
            self.optimizer.found_inf = self.is_lost.float()  # type: ignore[attr-defined]
        self.has_changed = True
        self.optimizer.step()

    def new_results(self) -> Results[Any]:
        """Return what brings scores and losses to the host: behind the steps on a device."""
        return ReadyResults() if self.is_lost is None else ResultRing(self.device)

    def check_late(
        self,
        place: BatchPlace,
        positive: Tensor,
        negative: Tensor,
        loss: Tensor | None = None,
        classes: Tensor | None = None,
    ) -> None:
        """Check what has come to the host of a step whose values nothing has waited for.

        Raises:
            TrainingDiverged: If a value is not finite. No step since then has changed the model;
                from now on steps do again.
        """
        if self.is_lost is None:
            return
        try:
            check_finite(place, positive, negative, loss, classes)
        except TrainingDiverged:
            self.is_lost.zero_()
            raise

    def _lost(
        self, batch: Batch, scores: Scores, loss: Tensor | None = None
    ) -> TrainingDiverged | None:
        """Return the error that names what is not finite, or on a device note it there."""
        try:
            self._check_finite(batch, scores, loss)
        except TrainingDiverged as error:
            return error
        return None

    def _check_finite(self, batch: Batch, scores: Scores, loss: Tensor | None = None) -> None:
        """Raise if a value is not finite, or on a device note it there."""
        if self.is_lost is None:
            place = BatchPlace.of(batch)
            check_finite(place, scores.positive, scores.negative, loss, scores.classes)
            return
        values = scores.positive, scores.negative, scores.classes, loss
        flat = torch.cat([x.detach().flatten() for x in values if x is not None])
        self.is_lost.logical_or_(flat.isfinite().all().logical_not_())

    def _set_mode(self, *, training: bool) -> None:
        if self.model.training != training:  # a walk over all modules
            self.model.train(training)

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Enclose what the model computes: timed, on a device with its precision and state."""
        with self._clock.measuring():
            if self.device.type == "cpu":
                yield
            else:
                with self._touching_state(), _matmul_precision(self._precision):
                    yield

    @contextmanager
    def _touching_state(self) -> Iterator[None]:
        """Enclose reading or writing the model's state: on a device without waiting for it."""
        with ExitStack() as stack:
            if self._state is not None and self.device.type != "cpu":
                if self._num_nodes is not None:
                    stack.enter_context(self._state.covering(self._num_nodes()))
                if self.is_lost is not None:
                    stack.enter_context(self._state.unless(self.is_lost))
            yield


@contextmanager
def _matmul_precision(precision: str | None) -> Iterator[None]:
    """Let torch multiply float32 matrices with this precision; None: as it does."""
    if precision is None:
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
