"""Training steps on slices of a batch: gradients are added over slices, on one or several ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tgflow.base.peers import Peers
from tgflow.base.tree_sum import TreeSum
from tgflow.graph.batch import Batch, Share, StepBatch
from tgflow.nn.messages import Messages, NewEvents
from tgflow.nn.model import Scores, TemporalModel
from tgflow.ranks.control import RankControl
from tgflow.ranks.reducer import RankReducer, SliceReducer
from tgflow.train.captured import cloned, is_capturable
from tgflow.train.config import TrainingConfig
from tgflow.train.finite import BatchPlace, TrainingDiverged, elsewhere
from tgflow.train.step import StepResult, StepScores, TrainStep, detached


@dataclass(slots=True, eq=False)
class ShareScores:
    """Scores of a batch whose slices were computed separately."""

    own: Mapping[int, Scores]
    """Scores of the slices computed here, with the inputs of their messages."""
    whole: Callable[[], Scores] | None
    """Returns the scores of all rows, if this rank receives them."""
    messages: Callable[[], Messages] | None = None
    """Returns the messages of the whole batch, if they were already sent."""

    def named(self) -> dict[str, Tensor]:
        """Return all scores by name; empty if only another rank has them."""
        return {} if self.whole is None else self.whole().named()


class SlicedStep(TrainStep):
    """Trains on the slices of a `Share`, and on whole batches; see `TrainStep`.

    Each slice is computed separately, with its own dropout key; gradients and losses are added over
    slices in one order (`TreeSum`), followed by one optimizer step. The result is therefore the
    same whichever ranks compute which slices.
    """

    def __init__(
        self,
        model: TemporalModel,
        config: TrainingConfig,
        *,
        peers: Peers | None = None,
        control: RankControl | None = None,
        **options: Any,
    ) -> None:
        self.reducer = SliceReducer()
        check_sliceable(model, config.slices)
        if peers is not None and peers.world > 1:
            assert control is not None
            self.reducer = RankReducer(peers, config.slices, model, control, _elsewhere)
        self.leads, self.waits = self.reducer.leads, self.reducer.waits
        super().__init__(model, config, **options)
        dtype = self.parameters[0].dtype if self.parameters else None
        self._part = torch.zeros((), dtype=dtype, device=self.device)
        """Factor of the loss of a captured slice."""

    def flush(self, batch: StepBatch) -> None:
        if isinstance(batch, Share):
            self.reducer.flush(batch)

    def _predict(self, batch: StepBatch) -> StepScores:
        if not isinstance(batch, Share):
            return super()._predict(batch)
        own = self._scores_of(batch)
        errors = [self.lost(part, own[number]) for number, part in batch.computed()]
        self.reducer.agree(batch, next(filter(None, errors), None))
        return ShareScores(own, self.reducer.scores(batch, own))

    def _scores_of(self, share: Share) -> dict[int, Scores]:
        """Return the scores of the slices computed here, finite or not."""
        if share.fetch is not None:  # rows of a sharded state that the slices read
            share.fetch()
        self.check_batch(share.slices[0])
        return {
            number: self.run("predict", batch, self._score_slice, cloned)[0]
            for number, batch in share.computed()
        }

    @torch.no_grad()
    def _score_slice(self, batch: Batch) -> tuple[Scores]:
        self.set_mode(training=False)
        with self._reading(batch):
            return (self.model(batch),)

    @contextmanager
    def _reading(self, batch: Batch) -> Iterator[None]:
        """Context manager for reading the state for a slice; leaves no trace in it."""
        if self.state is None or not batch.nodes.is_cpu:
            yield
            return
        with self.state.covering(int(batch.nodes.max()) + 1 if len(batch.nodes) else 0):
            yield

    def _learn(self, batch: StepBatch, *, stores: bool) -> StepResult:
        """Score each slice, add its loss and gradients to the others', clip and update."""
        if not isinstance(batch, Share):
            return super()._learn(batch, stores=stores)
        self.check_batch(batch.slices[0])
        if batch.fetch is not None:
            batch.fetch()
        leaves = FlatGradient(self.parameters, self.model.marks(), self.device)
        tree, own = TreeSum(batch.num_slices), dict[int, Scores]()
        error: TrainingDiverged | None = None
        computed = dict(batch.computed())
        for number in batch.numbers:
            leaf, found = leaves.none(), None
            if number in computed:
                leaves.rewind()
                own[number], leaf, found = self._leaf_of(leaves, computed[number], len(batch))
            error = found if error is None else error
            tree.add(range(number, number + 1), leaf)
        scores = ShareScores(own, self.reducer.scores(batch, own))
        if stores:
            scores.messages = self._messages(batch, own)
        try:
            total = self.reducer.total(tree)  # not computing: it waits for other ranks
        except TrainingDiverged:  # from the prediction: then nothing is learned
            leaves.rewind()
            raise
        with self.computing():
            loss, is_lost = leaves.spread(total)
            if self.is_lost is not None:
                self.is_lost.logical_or_(is_lost)
                loss = loss.where(~self.is_lost, torch.nan)  # for the other ranks to detect it
            elif bool(is_lost):
                leaves.rewind()
                raise _elsewhere(batch) if error is None else error
            self.update()
        return StepResult(loss.clone(), scores)

    def _leaf_of(
        self, leaves: FlatGradient, batch: Batch, num_rows: int
    ) -> tuple[Scores, Tensor, TrainingDiverged | None]:
        """Return the scores and the leaf of a slice, and the error, if any."""
        part: float | Tensor = _share_of_slice(batch, num_rows)
        if self._calls is not None and is_capturable(batch, learns=True):
            part = self._part.fill_(part)
        work = partial(self._backward, leaves, part)
        key = self.key_of(batch)
        return self.run("learn", batch, work, cloned, key)

    def _backward(
        self, leaves: FlatGradient, part: float | Tensor, batch: Batch
    ) -> tuple[Scores, Tensor, TrainingDiverged | None]:
        """Return scores, leaf and error of a slice; `part`: factor of its loss in that of all."""
        self.set_mode(training=True)
        with self._reading(batch):
            scores: Scores = self.model(batch)
        if not len(batch):
            return detached(scores), leaves.none(), None
        loss = self.loss_of(batch, scores) * part
        error = self.lost(batch, scores, loss)
        if self.learns:
            loss.backward()  # type: ignore[no-untyped-call]
        leaf = leaves.leaf(loss, error is not None if self.is_lost is None else self.is_lost)
        return detached(scores), leaf, error

    def lost(
        self, batch: Batch, scores: Scores, loss: Tensor | None = None
    ) -> TrainingDiverged | None:
        """Return the error that `check_finite` would raise."""
        try:
            self.check_finite(batch, scores, loss)
        except TrainingDiverged as error:
            return error
        return None

    def _messages(self, share: Share, own: Mapping[int, Scores]) -> Callable[[], Messages] | None:
        """Return the function of the whole batch's messages; None if the model stores nothing."""
        made: dict[int, Messages] = {}
        with torch.no_grad():
            for number, batch in share.computed():
                messages = self.model.messages(batch, own[number])
                if messages is None:
                    return None
                made[number] = messages
        return self.reducer.messages(share, made)

    def commit(self, batch: StepBatch, scores: StepScores | None) -> None:
        if not isinstance(batch, Share):
            super().commit(batch, scores)
            return
        assert scores is None or isinstance(scores, ShareScores)
        if scores is not None and scores.messages is not None:
            messages: Callable[[], Messages] | None = scores.messages
        else:
            own = self._scores_of(batch) if scores is None else scores.own
            messages = self._messages(batch, own)
        self.flush(batch)
        with self.touching_state(), torch.no_grad():
            self.has_changed = True
            if messages is not None:
                events = NewEvents.of_host(batch.host, batch.num_new, self.device)
                self.model.store(events, messages())


def _elsewhere(share: Share) -> TrainingDiverged:
    return elsewhere(BatchPlace.of(share))


def _share_of_slice(batch: Batch, num_rows: int) -> float:
    """Return the share of a slice in the loss of a batch of `num_rows` rows."""
    weight = batch.host.weight
    if weight is None:
        return len(batch) / num_rows
    whole = weight if batch.slice is None else batch.slice.host.weight
    assert whole is not None
    total = float(whole.double().sum())
    return float(weight.double().sum()) / total if total else 0.0


def check_sliceable(model: TemporalModel, slices: int) -> None:
    """Raise ValueError if batches are sliced and a model stores only whole ones."""
    takes_whole = type(model).commit is not TemporalModel.commit and model.state is not None
    if slices > 1 and takes_whole:
        raise ValueError(
            f"{type(model).__name__} overrides commit, which stores whole batches, but they are "
            f"cut into {slices} slices: define messages and store instead, or leave slices at 1 "
            "(--slices 1)"
        )


class FlatGradient:
    """Turns the gradients of a backward pass into a *leaf*, float `[size]`, and a sum back.

    A leaf has the gradients of all parameters, concatenated, zeros where there is none; then the
    marks, 1 where one is set; then the loss, and whether a value is not finite. Marks are bool
    buffers that the forward pass in training may set but never clears: each slice sees those set
    before its batch and its own.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], marks: Sequence[Tensor], device: torch.device
    ) -> None:
        self._parameters, self._marks, self._device = parameters, marks, device
        self._sizes = [*(each.numel() for each in (*parameters, *marks)), 1, 1]
        self._dtype = parameters[0].dtype if parameters else torch.float64
        self._before = [each.clone() for each in marks]

    def none(self) -> Tensor:
        return torch.zeros(sum(self._sizes), dtype=self._dtype, device=self._device)

    def rewind(self) -> None:
        """Clear gradients, and reset marks to those before the batch."""
        for parameter in self._parameters:
            parameter.grad = None
        for mark, before in zip(self._marks, self._before, strict=True):
            mark.copy_(before)

    def leaf(self, loss: Tensor, is_lost: Tensor | bool) -> Tensor:
        """Return the leaf after a backward pass, with its part of the loss."""
        out = self.none()
        *places, loss_place, lost_place = torch.split(out, self._sizes)
        for place, source in zip(places, [*self._parameters, *self._marks], strict=True):
            column = source.grad if isinstance(source, nn.Parameter) else source
            if column is not None:
                place.copy_(column.reshape(-1))
        loss_place.copy_(loss.detach())
        lost_place.copy_(torch.as_tensor(is_lost))
        return out

    def spread(self, total: Tensor) -> tuple[Tensor, Tensor]:
        """Set gradients and marks from the sum of leaves; return loss and is_lost."""
        *places, loss, lost = torch.split(total, self._sizes)
        num = len(self._parameters)
        for place, parameter in zip(places[:num], self._parameters, strict=True):
            parameter.grad = place.view_as(parameter).to(parameter.dtype)
        for place, mark in zip(places[num:], self._marks, strict=True):
            mark.copy_(place.view_as(mark) > 0)
        return loss.squeeze(0), lost.squeeze(0) > 0
