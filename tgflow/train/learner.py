"""One step of learning, shared by all trainers: score, check, descend, store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from tgflow.batch import Batch
from tgflow.keys import derive_key
from tgflow.model import Scores, TemporalModel

_MASK_63_BITS = (1 << 63) - 1


class TrainingDiverged(RuntimeError):
    """A loss or score that is not finite; the message says where, and what to do.

    Args:
        text: The message.
        events: Log positions of the first and after the last new event of the batch.
    """

    def __init__(self, text: str, events: tuple[int, int]) -> None:
        super().__init__(text)
        self.events = events


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one update saw."""

    loss: float
    """Mean binary cross-entropy of the batch before the update, positives and negatives alike."""
    scores: Scores
    """Detached logits in training mode (with dropout), and what `commit` needs."""


class Learner:
    """Steps a model over batches: `predict`, `learn` and `commit`, in this order or part of it.

    Dropout is keyed by (seed, epoch, index), so a step is the same wherever a run was resumed. For
    that, `learn` seeds torch's default generators of the CPU and of the model's device, and gives
    their state back afterwards, as `torch.random.fork_rng` does: another thread that draws from
    them meanwhile gets keyed draws, so give it a generator of its own.

    Args:
        model: Model to train.
        seed: Seeds dropout.
        learning_rate: Adam's, above 0.
        weight_decay: Adam's, at least 0.
        grad_clip: Largest norm of all gradients together, or None.
    """

    def __init__(
        self,
        model: TemporalModel,
        *,
        seed: int,
        learning_rate: float,
        weight_decay: float = 0.0,
        grad_clip: float | None = None,
    ) -> None:
        self.model = model
        self.seed = seed
        self.grad_clip = grad_clip
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(
            self._parameters, lr=learning_rate, weight_decay=weight_decay, fused=True
        )
        self._checked = False
        self.compute_seconds = 0.0
        """Time in forward, backward and optimizer; all else is a trainer's overhead."""

    @property
    def device(self) -> torch.device:
        """Where the model's parameters are; the CPU for a model without any."""
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def predict(self, batch: Batch) -> Scores:
        """Return the logits of `batch` in evaluation mode, without gradients; changes nothing.

        Raises:
            TrainingDiverged: If a score is not finite.
            ValueError: If the model reads features of other widths than the batch has.
        """
        scores = self._scored(batch)
        _check_finite(batch, scores)
        return scores

    def _scored(self, batch: Batch) -> Scores:
        """Return the scores of `batch` in evaluation mode, without gradients."""
        self._check(batch)
        self._set_mode(training=False)
        with torch.no_grad(), self._computing():
            scores: Scores = self.model(batch)
        return scores

    def _check(self, batch: Batch) -> None:
        """Refuse the first batch if its features have other widths than the model's."""
        if not self._checked:
            self.model.check_widths(batch)
            self._checked = True

    def learn(self, batch: Batch) -> StepResult:
        """Take one optimizer step on all events of `batch`; memory is left as it is.

        Raises:
            TrainingDiverged: If the loss or a score is not finite; the parameters are unchanged.
            ValueError: If the model reads features of other widths than the batch has.
        """
        self._check(batch)
        self._set_mode(training=True)
        draws = _keyed_draws(derive_key(self.seed, batch.epoch, batch.index), self.device)
        with draws, self._computing():
            scores = self.model(batch)
            loss = link_loss(scores)
        _check_finite(batch, scores, loss)
        with self._computing():
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if self.grad_clip is not None:
                torch.nn.utils.clip_grad_norm_(self._parameters, self.grad_clip)
            self.optimizer.step()
        detached = Scores(scores.positive.detach(), scores.negative.detach(), scores.carry)
        return StepResult(loss.item(), detached)

    def commit(self, batch: Batch, scores: Scores | None) -> None:
        """Store the batch's new events in the model's state.

        Args:
            batch: The batch.
            scores: What `predict` or `learn` returned of it; None, if that was not finite, stores
                what the model computes now.
        """
        self.model.commit(batch, self._scored(batch) if scores is None else scores)

    def _set_mode(self, *, training: bool) -> None:
        if self.model.training != training:  # a walk over all modules
            self.model.train(training)

    @contextmanager
    def _computing(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.compute_seconds += time.perf_counter() - begin


def link_loss(scores: Scores) -> Tensor:
    """Return the binary cross-entropy of logits, half of it from positives, half from negatives.

    With one negative a positive this is the mean over all scores.
    """
    return (softplus(-scores.positive).mean() + softplus(scores.negative).mean()) / 2


@contextmanager
def _keyed_draws(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's draws on the CPU and on `device`; give the caller's state back afterwards.

    On the generators themselves: `torch.manual_seed` takes milliseconds on a machine without a GPU,
    as it records where it was called, for when there is one.
    """
    generators = _default_generators(device)
    callers = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(seed & _MASK_63_BITS)
    try:
        yield
    finally:
        for generator, state in zip(generators, callers, strict=True):
            generator.set_state(state)


def _default_generators(device: torch.device) -> list[torch.Generator]:
    """Return the generators that draws of a model on `device` may come from."""
    if device.type != "cuda":
        return [torch.default_generator]
    index = torch.cuda.current_device() if device.index is None else device.index
    return [torch.default_generator, torch.cuda.default_generators[index]]


def _check_finite(batch: Batch, scores: Scores, loss: Tensor | None = None) -> None:
    for name, values in (("positive", scores.positive), ("negative", scores.negative)):
        if not bool(values.isfinite().all()):
            flat = values.detach().reshape(len(batch), -1)
            row = int((~flat.isfinite()).any(1).nonzero()[0])
            bad = flat[row][~flat[row].isfinite()][0].item()
            raise TrainingDiverged(
                f"{_where(batch)}: the {name} score of event {int(batch.eid[row])} is {bad}; "
                f"{_WAY_OUT}",
                _new_events(batch),
            )
    if loss is not None and not bool(loss.isfinite()):
        text = f"{_where(batch)}: the loss is {loss.item()}; {_WAY_OUT}"
        raise TrainingDiverged(text, _new_events(batch))


_WAY_OUT = "lower the learning rate, set grad_clip, or look for features that are not finite"


def _where(batch: Batch) -> str:
    start, stop = _new_events(batch)
    events = f"events [{start}, {stop})" if stop > start else "no new events"
    return f"epoch {batch.epoch}, batch {batch.index}, {events}"


def _new_events(batch: Batch) -> tuple[int, int]:
    new = batch.eid[: batch.num_new]
    return (int(new[0]), int(new[-1]) + 1) if len(new) else (0, 0)
