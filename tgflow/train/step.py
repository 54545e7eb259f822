"""One training step: score, loss, backward, clip, optimizer step, store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tgflow.base.keys import KeyDomain, derive_key
from tgflow.base.tree_sum import TreeSum
from tgflow.cuda.clock import clock_of
from tgflow.cuda.device import device_of, has_device
from tgflow.graph.batch import AnyBatch, Batch, Share
from tgflow.graph.stream_state import DeviceState
from tgflow.nn._native import note_non_finite
from tgflow.nn.dropout import DropoutKeys, seeded_draws
from tgflow.nn.linear import check_precision, product_precision
from tgflow.nn.messages import Messages, NewEvents
from tgflow.nn.model import Scores, TemporalModel, device_of_model
from tgflow.train.captured import CapturedCalls, cloned, is_capturable, tensors_of
from tgflow.train.config import ExecutionConfig, TrainingConfig
from tgflow.train.finite import BatchPlace, TrainingDiverged, check_finite, elsewhere
from tgflow.train.flat_gradients import Leaves
from tgflow.train.losses import LossLike, loss_of, parameters_of
from tgflow.train.optimizers import (
    OptimizerLike,
    SchedulerLike,
    optimizer_of,
    scheduler_of,
    skips_on_device,
)
from tgflow.train.reducer import AnyScores, ShareScores, SliceReducer
from tgflow.train.results import Results
from tgflow.train.tasks.labels import LabelTask

_WHY_GIVEN = {
    "weight": ("the events have weights", "read the stream without weight=..."),
    "log_q": ("each event has a list of negatives", 'learn from negatives="random:1"'),
}
"""What a loss must take, and the alternative."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Loss and scores of one update."""

    loss: Tensor
    """float32 `[]`: of the batch before the update; see `tgflow.train.losses`."""
    scores: AnyScores
    """Detached logits in training mode (with dropout), and the inputs of `messages`."""


class TrainStep:
    """Trains a model batch by batch: `predict`, `learn` and `commit`, in this order or part of it.

    For parameter-free models `learn` only returns loss and scores.

    An `Execution` computes a batch: plain; captured, which replays recurring shapes as CUDA graphs;
    or sliced, for a `Share`. Each slice is computed separately, with its
    own dropout key; gradients and losses are added over slices in one order (`TreeSum`),
    followed by one optimizer step. The result is therefore the same whichever ranks compute which
    slices.

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
        reducer: SliceReducer | None = None,
        task: LabelTask | None = None,
    ) -> None:
        self.model, self.config, self.task = model, config, task
        self.reducer = SliceReducer() if reducer is None else reducer
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
        self._num_nodes = num_nodes
        state = model.state
        self.state = state if isinstance(state, DeviceState) else None
        waits = not has_device(self.device) or checks_at_once or state is not self.state
        # Ranks learn of each other's values with the gradients.
        waits |= self.reducer.waits and self.optimizer is None
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
        # targets of a task are computed on the host
        calls = self._captured_calls() if execution.capture and task is None else None
        self._whole = _PlainExecution(self) if calls is None else _CapturedExecution(self, calls)
        self._sliced = _SlicedExecution(self, calls)

    def _captured_calls(self) -> CapturedCalls | None:
        """Return the CUDA graph capture, if no captured step synchronizes or moves memory."""
        state = self.state
        if self.is_lost is None:
            return None
        if state is not None and not (isinstance(state, nn.Module) and state.capturable):
            return None
        tensors = list if state is None else partial(_buffers_of, state)
        device = device_of(self.device)
        return CapturedCalls(device, tensors, self.make_room, self.working, self.idle)

    def _execution(self, batch: AnyBatch) -> Any:
        return self._sliced if isinstance(batch, Share) else self._whole

    def predict(self, batch: AnyBatch) -> AnyScores:
        """Return the logits of `batch` in evaluation mode, without gradients; changes nothing."""
        with self.limited_threads():
            scores: AnyScores = self._execution(batch).predict(batch)
        return scores

    def learn(self, batch: AnyBatch, *, stores: bool = True) -> StepResult:
        """Take one optimizer step on all events of `batch`; memory is not updated."""
        with self.limited_threads():
            result: StepResult = self._execution(batch).learn(batch, stores)
        # Outside of the execution: a replayed CUDA graph runs no Python.
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()
        return result

    def commit(self, batch: AnyBatch, scores: AnyScores | None) -> None:
        self._execution(batch).commit(batch, scores)

    def score(self, batch: Batch) -> Scores:
        self.set_mode(training=False)
        scores: Scores = self.model(batch)
        self.check_finite(batch, scores)
        return scores

    def descend(self, batch: Batch) -> StepResult:
        """Score a batch and take an optimizer step by the gradients of its loss."""
        self.set_mode(training=True)
        scores = self.model(batch)
        loss = self.loss_of(batch, scores)
        if self.task is not None:
            loss = self.task.loss(loss, scores, batch)
        self.check_finite(batch, scores, loss)
        self.backward(loss)
        return StepResult(loss.detach(), _detached(scores))

    def backward(self, loss: Tensor) -> None:
        if self.optimizer is not None:
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.update()

    def update(self) -> None:
        if self.optimizer is None:
            return
        self.before_update()
        if self.config.grad_clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.config.grad_clip)
        if self.is_lost is not None:
            self.optimizer.found_inf = self.is_lost.float()  # type: ignore[attr-defined]
        self.has_changed = True
        self.optimizer.step()

    @contextmanager
    def reading(self, batch: Batch) -> Iterator[None]:
        """Context manager for reading the state for a part of an update; leaves no trace in it."""
        if self.state is None or not batch.nodes.is_cpu:
            yield
            return
        with self.state.covering(int(batch.nodes.max()) + 1 if len(batch.nodes) else 0):
            yield

    def leaf_of(
        self, leaves: Leaves, batch: Batch, part: float
    ) -> tuple[Scores, Tensor, TrainingDiverged | None]:
        """Return the scores and the leaf of a part of an update, and the error, if any.

        Args:
            leaves: Makes the leaf; its gradients are cleared first.
            batch: The part.
            part: Factor of its loss in the loss of the update.
        """
        key = self.key_of(batch)
        self.dropout.set(key)
        with self.computing(), seeded_draws(key, self.device):
            leaves.rewind()
            return self.new_leaf(leaves, part, batch)

    def new_leaf(
        self, leaves: Leaves, part: float | Tensor, batch: Batch
    ) -> tuple[Scores, Tensor, TrainingDiverged | None]:
        """Do the same without clearing gradients; `part` may be in device memory, `[]`."""
        with self.reading(batch):
            scores: Scores = self.model(batch)
        if not len(batch):
            return _detached(scores), leaves.none(), None
        loss = self.loss_of(batch, scores) * part
        error = self.lost(batch, scores, loss)
        if self.learns:
            loss.backward()  # type: ignore[no-untyped-call]
        leaf = leaves.leaf(loss, error is not None if self.is_lost is None else self.is_lost)
        return _detached(scores), leaf, error

    def update_by(
        self, leaves: Leaves, total: Tensor, place: BatchPlace, error: TrainingDiverged | None
    ) -> Tensor:
        """Take an optimizer step by the sum of leaves; return the loss.

        Raises:
            TrainingDiverged: `error`, or that of another rank at `place`.
        """
        with self.computing():
            loss, is_lost = leaves.spread(total)
            if self.is_lost is not None:
                self.is_lost.logical_or_(is_lost)
                loss = loss.where(~self.is_lost, torch.nan)  # for the other ranks to detect it
            elif bool(is_lost):
                leaves.rewind()
                raise elsewhere(place) if error is None else error
            self.update()
        return loss.clone()

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
        return self.loss(scores, **given)

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
    def evaluating(self, batch: Batch) -> Iterator[None]:
        """Context manager for scoring `batch` in evaluation mode, without gradients."""
        self.check_batch(batch)
        self.set_mode(training=False)
        with torch.no_grad(), self.computing():
            yield

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

    @contextmanager
    def limited_threads(self) -> Iterator[None]:
        """Context manager that limits torch to one thread for a model that only reads counts.

        Its operations are short, and torch's other threads would spin between them on the cores
        that count.
        """
        before = torch.get_num_threads()
        if self.model.reads_nodes or before == 1:
            yield
            return
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def make_room(self) -> None:
        """Make the state hold all nodes, so that it does not move until there are more."""
        if self.state is not None and self._num_nodes is not None:
            with self.state.covering(self._num_nodes()):
                pass

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

    def lost(
        self, batch: Batch, scores: Scores, loss: Tensor | None = None
    ) -> TrainingDiverged | None:
        """Return the error that `check_finite` would raise."""
        try:
            self.check_finite(batch, scores, loss)
        except TrainingDiverged as error:
            return error
        return None

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
        return Results(device, together=self.reducer.waits)


class _PlainExecution:
    """Computes whole batches eagerly; the methods are those of `TrainStep`."""

    def __init__(self, step: TrainStep) -> None:
        self._step = step

    def predict(self, batch: Batch) -> Scores:
        with self._step.evaluating(batch):
            return self._step.score(batch)

    def learn(self, batch: Batch, stores: bool) -> StepResult:
        step, key = self._step, self._step.key_of(batch)
        step.check_batch(batch)
        step.dropout.set(key)
        with step.computing(), seeded_draws(key, step.device):
            return step.descend(batch)

    def commit(self, batch: Batch, scores: Scores | None) -> None:
        step = self._step
        if scores is None:
            with step.evaluating(batch):
                now: Scores = step.model(batch)
            scores = now
        with step.touching_state():
            step.has_changed = True
            step.model.commit(batch, scores)


class _CapturedExecution(_PlainExecution):
    """Computes whole batches of recurring shapes by replaying CUDA graphs."""

    def __init__(self, step: TrainStep, calls: CapturedCalls) -> None:
        super().__init__(step)
        self.calls, self._score = calls, torch.no_grad()(step.score)
        self._replayed: tuple[str, Scores, Scores] | None = None
        """If a replay made the latest scores: their batch, as the replay left them, as returned."""

    def predict(self, batch: Batch) -> Scores:
        step = self._step
        if batch.host.relation is not None:  # as in `learn`
            return super().predict(batch)
        step.check_batch(batch)
        with step.clock.measuring():
            scores = self.calls.call("predict", batch, self._score, tensors_of)
        return self._kept("predict", scores)

    def learn(self, batch: Batch, stores: bool) -> StepResult:
        step = self._step
        if not is_capturable(batch):
            return super().learn(batch, stores)
        step.check_batch(batch)
        step.dropout.set(step.key_of(batch))
        with step.clock.measuring():
            result = self.calls.call("learn", batch, step.descend, _result_tensors)
            loss = result.loss.clone()
        step.has_changed |= step.learns  # a replay does not set it
        assert isinstance(result.scores, Scores)
        return StepResult(loss, self._kept("learn", result.scores))

    def _kept(self, name: str, scores: Scores) -> Scores:
        """Return scores that no replay overwrites; record which replay their carry belongs to."""
        kept = Scores(scores.positive.clone(), scores.negative.clone(), scores.carry)
        self._replayed = (name, scores, kept) if self.calls.was_replay else None
        return kept

    def commit(self, batch: Batch, scores: Scores | None) -> None:
        replayed, step = self._replayed, self._step
        if replayed is None or step.state is None or scores is not replayed[2]:
            super().commit(batch, scores)
            return
        step.has_changed = True
        name, found, _ = replayed  # found: where a replay of the commit reads
        commit = partial(step.model.commit, found=found)
        self.calls.call(f"commit {name}", batch, commit, lambda nothing: [], follows=True)


def _buffers_of(module: nn.Module) -> list[Tensor | None]:
    """Return what `Module.buffers` yields, in a tenth of the time, and None for those not set."""
    found = [*module._buffers.values()]
    for child in module._modules.values():
        found += [] if child is None else _buffers_of(child)
    return found


def _result_tensors(result: StepResult) -> list[Tensor]:
    assert isinstance(result.scores, Scores)
    return [result.loss, *tensors_of(result.scores)]


class _SlicedExecution:
    """Computes the slices of a `Share` one by one; a reducer combines them over ranks.

    On a GPU slices of recurring shapes are replays of CUDA graphs.
    """

    def __init__(self, step: TrainStep, calls: CapturedCalls | None) -> None:
        self._step, self._reducer, self._calls = step, step.reducer, calls
        dtype = step.parameters[0].dtype if step.parameters else None
        self._part = torch.zeros((), dtype=dtype, device=step.device)
        """Factor of the loss of a captured slice."""

    def predict(self, share: Share) -> ShareScores:
        error: TrainingDiverged | None = None
        own = self._computed(share)
        for number, batch in share.computed():
            found = self._step.lost(batch, own[number])
            error = found if error is None else error
        self._reducer.agree(share, error)
        return ShareScores(own, self._reducer.scores(share, own))

    def _computed(self, share: Share) -> dict[int, Scores]:
        """Return the scores of the slices computed here, finite or not."""
        if share.fetch is not None:  # rows of a sharded state that the slices read
            share.fetch()
        own = {}
        for number, batch in share.computed():
            own[number] = self._scored(batch)
        return own

    def _scored(self, batch: Batch) -> Scores:
        step, calls = self._step, self._calls
        if calls is None or not len(batch) or batch.host.relation is not None:
            with step.evaluating(batch), step.reading(batch):
                return self._predicted(batch)
        step.check_batch(batch)
        with step.clock.measuring():
            scores = calls.call("predict", batch, self._predicted, tensors_of)
            return cloned(scores) if calls.was_replay else scores

    @torch.no_grad()
    def _predicted(self, batch: Batch) -> Scores:
        self._step.set_mode(training=False)
        scores: Scores = self._step.model(batch)
        return scores

    def learn(self, share: Share, stores: bool) -> StepResult:
        """Take an optimizer step by the sum of the slices' gradients."""
        self._step.check_batch(share.slices[0])
        if share.fetch is not None:
            share.fetch()
        self._step.set_mode(training=True)
        leaves = Leaves(self._step.parameters, self._step.model.marks(), self._step.device)
        tree, own = TreeSum(share.num_slices), dict[int, Scores]()
        error: TrainingDiverged | None = None
        computed = dict(share.computed())
        for number in share.numbers:
            leaf, found = leaves.none(), None
            if number in computed:
                batch = computed[number]
                part = _share_of_slice(batch, len(share))
                own[number], leaf, found = self._leaf_of(leaves, batch, part)
            error = found if error is None else error
            tree.add(range(number, number + 1), leaf)
        scores = ShareScores(own, self._reducer.scores(share, own))
        if stores:
            scores.messages = self._messages(share, own)
        try:
            total = self._reducer.total(tree)  # not computing: it waits for other ranks
        except TrainingDiverged:  # from the prediction: then nothing is learned
            leaves.rewind()
            raise
        loss = self._step.update_by(leaves, total, BatchPlace.of(share), error)
        return StepResult(loss, scores)

    def _leaf_of(
        self, leaves: Leaves, batch: Batch, part: float
    ) -> tuple[Scores, Tensor, TrainingDiverged | None]:
        step, calls = self._step, self._calls
        if calls is None or not len(batch) or not is_capturable(batch):
            return step.leaf_of(leaves, batch, part)
        step.dropout.set(step.key_of(batch))
        with step.clock.measuring():
            leaves.rewind()
            step.set_mode(training=True)
            self._part.fill_(part)
            learn = partial(step.new_leaf, leaves, self._part)
            found = calls.call("learn", batch, learn, lambda x: [x[1], *tensors_of(x[0])])
            return cloned(found) if calls.was_replay else found

    def _messages(self, share: Share, own: Mapping[int, Scores]) -> Callable[[], Messages] | None:
        """Return the function of the whole batch's messages; None if the model stores nothing."""
        made: dict[int, Messages] = {}
        with torch.no_grad():
            for number, batch in share.computed():
                messages = self._step.model.messages(batch, own[number])
                if messages is None:
                    return None
                made[number] = messages
        return self._reducer.messages(share, made)

    def commit(self, share: Share, scores: ShareScores | None) -> None:
        if scores is not None and scores.messages is not None:
            messages: Callable[[], Messages] | None = scores.messages
        else:
            own = self._computed(share) if scores is None else scores.own
            messages = self._messages(share, own)
        self._reducer.settle(share)
        with self._step.touching_state(), torch.no_grad():
            self._step.has_changed = True
            if messages is not None:
                events = NewEvents.of_host(share.host, share.num_new, self._step.device)
                self._step.model.store(events, messages())


def _share_of_slice(batch: Batch, num_rows: int) -> float:
    """Return the share of a slice in the loss of a batch of `num_rows` rows."""
    weight = batch.host.weight
    if weight is None:
        return len(batch) / num_rows
    whole = weight if batch.slice is None else batch.slice.host.weight
    assert whole is not None
    total = float(whole.double().sum())
    return float(weight.double().sum()) / total if total else 0.0


def _detached(scores: Scores) -> Scores:
    classes = None if scores.classes is None else scores.classes.detach()
    return Scores(scores.positive.detach(), scores.negative.detach(), scores.carry, classes)
