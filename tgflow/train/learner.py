"""One step of learning, shared by all trainers: score, check, descend, store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tgflow.batch import Batch
from tgflow.choices import Loss
from tgflow.cuda.clock import clock_of
from tgflow.cuda.devices import device_of, has_device
from tgflow.keys import derive_key
from tgflow.model import Scores, TemporalModel
from tgflow.nn.dropout import DropoutKeys
from tgflow.state import DeviceState
from tgflow.train.captured import CapturedCalls
from tgflow.train.config import ExecutionConfig
from tgflow.train.draws import seeded_draws
from tgflow.train.finite import BatchPlace, TrainingDiverged, check_finite
from tgflow.train.losses import loss_of
from tgflow.train.results import ReadyResults, ResultRing, Results

_MATMUL_PRECISION = {"fp32": "highest", "tf32": "high"}


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one update saw."""

    loss: Tensor
    """float32 `[]`: of the batch before the update; see `tgflow.train.losses`."""
    scores: Scores
    """Detached logits in training mode (with dropout), and what `messages` needs."""


class Learner:
    """Steps a model over batches: `predict`, `learn` and `commit`, in this order or part of it.

    Of a model without parameters there is nothing to descend: `learn` only measures.

    Dropout (`tgflow.nn.Dropout`) is keyed by (seed, epoch, index), so a step is the same on every
    device and wherever a run was resumed. A model may also draw by torch's default generators: they
    are seeded alike for the step and given back afterwards, so another thread that draws from them
    meanwhile needs a generator of its own. Steps captured in a CUDA graph cannot seed them: such
    draws are other ones after a resume.

    On the CPU, what is not finite raises `TrainingDiverged` before anything has changed. On a
    device nothing waits for that: from the first such batch on, `is_lost` is set there, and no step
    changes parameters, optimizer or state any more. Whoever reads scores and losses later finds out
    which batch it was (`tgflow.train.finite`).

    Args:
        model: Model to train, on its device; batches come there.
        seed: Seeds dropout.
        learning_rate: Adam's, above 0.
        weight_decay: Adam's, at least 0.
        grad_clip: Largest norm of all gradients together, or None.
        loss: What to descend; None: the model's.
        execution: How a GPU is used.
        num_nodes: Returns a bound of the nodes in batches, as `TemporalGraph.num_nodes` is; None:
            a state on a device waits for the largest one at each step.
        checks_at_once: Wait at each step, on a device too, and raise there.
    """

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
    ) -> None:
        self.model = model
        self.seed = seed
        self.grad_clip = grad_clip
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
        self.is_lost = None if waits else torch.zeros((), dtype=torch.bool, device=self.device)
        """bool `[]` on the device: whether something was not finite; None where that raises."""
        self._dropout = DropoutKeys(model)
        self._calls = self._captured_calls() if execution.capture else None
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

    def predict(self, batch: Batch) -> Scores:
        """Return the logits of `batch` in evaluation mode, without gradients; changes nothing.

        Raises:
            TrainingDiverged: If a score is not finite, unless `is_lost` is to say so.
            ValueError: If the model reads features of other widths than the batch has.
        """
        with self._evaluating(batch):
            if self._calls is None:
                return self._predicted(batch)
            scores = self._calls.call("predict", batch, self._predicted, _tensors)
            return self._kept("predict", scores)

    def _predicted(self, batch: Batch) -> Scores:
        scores: Scores = self.model(batch)
        self._check_finite(batch, scores)
        return scores

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

    def learn(self, batch: Batch) -> StepResult:
        """Take one optimizer step on all events of `batch`; memory is left as it is.

        Raises:
            TrainingDiverged: If the loss or a score is not finite, unless `is_lost` is to say so;
                the parameters are unchanged.
            ValueError: If the model reads features of other widths than the batch has.
        """
        self._check(batch)
        self._set_mode(training=True)
        key = derive_key(self.seed, batch.epoch, batch.index)
        with self._dropout.keyed(key), self._computing():
            if self._calls is None:
                with seeded_draws(key, self.device):
                    return self._learned(batch)
            result = self._calls.call("learn", batch, self._learned, _result_tensors)
            self.has_changed |= self.learns  # as a replay does, which says nothing of it
            return StepResult(result.loss.clone(), self._kept("learn", result.scores))

    def _learned(self, batch: Batch) -> StepResult:
        scores = self.model(batch)
        loss = self._loss(scores)
        self._check_finite(batch, scores, loss)
        self._descend(loss)
        detached = Scores(scores.positive.detach(), scores.negative.detach(), scores.carry)
        return StepResult(loss.detach(), detached)

    def _kept(self, name: str, scores: Scores) -> Scores:
        """Return scores that no replay overwrites; note of which one their carry is."""
        assert self._calls is not None
        kept = Scores(scores.positive.clone(), scores.negative.clone(), scores.carry)
        self._replayed = (name, scores, kept) if self._calls.was_replay else None
        return kept

    def _descend(self, loss: Tensor) -> None:
        """Take a step of the optimizer, unless a loss or score was not finite, or there is none."""
        if self.optimizer is None:
            return
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.grad_clip is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self.grad_clip)
        if self.is_lost is not None:
            self.optimizer.found_inf = self.is_lost.float()  # type: ignore[attr-defined]
        self.has_changed = True
        self.optimizer.step()

    def commit(self, batch: Batch, scores: Scores | None) -> None:
        """Store the batch's new events in the model's state.

        Args:
            batch: The batch.
            scores: What `predict` or `learn` returned of it; None, if that was not finite, stores
                what the model computes now.
        """
        if scores is None:
            with self._evaluating(batch):
                scores = self.model(batch)
        with self._touching_state():
            self.has_changed = True
            replayed = self._replayed
            if replayed is None or self._state is None or scores is not replayed[2]:
                self.model.commit(batch, scores)
                return
            assert self._calls is not None
            name, found, _ = replayed  # found: where a replay of the commit reads
            commit = partial(self.model.commit, found=found)
            self._calls.call(f"commit {name}", batch, commit, lambda nothing: [], follows=True)

    def new_results(self) -> Results[Any]:
        """Return what brings scores and losses to the host: behind the steps on a device."""
        return ReadyResults() if self.is_lost is None else ResultRing(self.device)

    def check_late(
        self, place: BatchPlace, positive: Tensor, negative: Tensor, loss: Tensor | None = None
    ) -> None:
        """Check what has come to the host of a step whose values nothing has waited for.

        Raises:
            TrainingDiverged: If a value is not finite. No step since then has changed the model;
                from now on steps do again.
        """
        if self.is_lost is None:
            return
        try:
            check_finite(place, positive, negative, loss)
        except TrainingDiverged:
            self.is_lost.zero_()
            raise

    def _check_finite(self, batch: Batch, scores: Scores, loss: Tensor | None = None) -> None:
        """Raise if a value is not finite, or on a device note it there."""
        if self.is_lost is None:
            check_finite(BatchPlace.of(batch), scores.positive, scores.negative, loss)
            return
        values = [scores.positive, scores.negative] + ([] if loss is None else [loss])
        flat = torch.cat([x.detach().flatten() for x in values])
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


def device_of_model(model: TemporalModel) -> torch.device:
    """Return where a model's parameters are, or else its buffers; the CPU without any."""
    tensors = chain(model.parameters(), model.buffers())
    return next((x.device for x in tensors), torch.device("cpu"))


def _tensors(scores: Scores) -> list[Tensor]:
    """Return the tensors of scores, those that are carried on included."""
    found = tree_leaves((scores.positive, scores.negative, scores.carry), is_leaf=_has_tensors)
    return [
        tensor
        for leaf in found
        for tensor in ([leaf] if isinstance(leaf, Tensor) else _fields_of(leaf))
    ]


def _has_tensors(value: Any) -> bool:
    return is_dataclass(value)


def _fields_of(value: Any) -> list[Tensor]:
    if not is_dataclass(value):
        return []
    found = (getattr(value, field.name) for field in fields(value))
    return [each for each in found if isinstance(each, Tensor)]


def _result_tensors(result: StepResult) -> list[Tensor]:
    return [result.loss, *_tensors(result.scores)]


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
