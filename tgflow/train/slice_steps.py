"""Steps over slices of a batch: each is computed by itself, and added up in one order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from tgflow.batch import Batch
from tgflow.keys import KeyDomain, derive_key
from tgflow.messages import Messages, NewEvents
from tgflow.model import Scores
from tgflow.share import Share
from tgflow.train.descent import ModelDescent
from tgflow.train.draws import seeded_draws
from tgflow.train.finite import BatchPlace, TrainingDiverged, elsewhere
from tgflow.train.leaves import Leaves
from tgflow.train.reducer import AnyScores, ShareScores
from tgflow.tree_sum import TreeSum


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one update saw."""

    loss: Tensor
    """float32 `[]`: of the batch before the update; see `tgflow.train.losses`."""
    scores: AnyScores
    """Detached logits in training mode (with dropout), and what `messages` needs."""


class SliceSteps(ModelDescent):
    """The steps of a learner over shares; see `tgflow.train.reducer` for who else has a part."""

    @contextmanager
    def _reading(self, batch: Batch) -> Iterator[None]:
        """Enclose what reads the state for a slice: that leaves no trace of who has read it."""
        if self._state is None or not batch.nodes.is_cpu:
            yield
            return
        with self._state.covering(int(batch.nodes.max()) + 1 if len(batch.nodes) else 0):
            yield

    def _predict_slices(self, share: Share) -> ShareScores:
        _fetch(share)
        own: dict[int, Scores] = {}
        error: TrainingDiverged | None = None
        for number, batch in share.computed():
            with self._evaluating(batch), self._reading(batch):
                own[number] = self.model(batch)
                found = self._lost(batch, own[number])
                error = found if error is None else error
        self.reducer.agree(share, error)
        return ShareScores(own, self.reducer.scores(share, own))

    def _learn_slices(self, share: Share, stores: bool) -> StepResult:
        self._check(share.slices[0])
        _fetch(share)
        self._set_mode(training=True)
        leaves = Leaves(self._parameters, self.model.marks(), self.device)
        tree, own = TreeSum(share.num_slices), dict[int, Scores]()
        error: TrainingDiverged | None = None
        computed = dict(share.computed())
        for number in share.numbers:
            leaf, found = leaves.none(), None
            if number in computed:
                own[number], leaf, found = self._slice_leaf(leaves, computed[number], len(share))
            error = found if error is None else error
            tree.add(range(number, number + 1), leaf)
        scores = ShareScores(own, self.reducer.scores(share, own))
        if stores:
            scores.messages = self._messages(share, own)
        with self._computing():
            figures = leaves.spread(self._total(share, leaves, tree))
            if self.is_lost is not None:
                self.is_lost.logical_or_(figures.is_lost)
            elif bool(figures.is_lost):
                leaves.rewind()
                raise elsewhere(BatchPlace.of(share)) if error is None else error
            self._update()
        return StepResult(figures.loss.clone(), scores)

    def _total(self, share: Share, leaves: Leaves, tree: TreeSum) -> Tensor:
        try:
            return self.reducer.total(share, tree)
        except TrainingDiverged:  # of what was predicted: then nothing was to be learned
            leaves.rewind()
            raise

    def _slice_leaf(
        self, leaves: Leaves, batch: Batch, num_rows: int
    ) -> tuple[Scores, Tensor, TrainingDiverged | None]:
        """Return the scores and the leaf of a slice of `num_rows` rows, and what is not finite."""
        key = derive_key(self.seed, batch.epoch, batch.index)
        if batch.slice is not None:
            key = derive_key(key, KeyDomain.SLICE, batch.slice.number)
        with self._dropout.keyed(key), self._computing(), seeded_draws(key, self.device):
            leaves.rewind()
            with self._reading(batch):
                scores: Scores = self.model(batch)
            if not len(batch):
                return detach_scores(scores), leaves.none(), None
            loss = self._loss(scores) * (len(batch) / num_rows)
            error = self._lost(batch, scores, loss)
            if self.learns:
                loss.backward()  # type: ignore[no-untyped-call]
            leaf = leaves.leaf(loss, error is not None if self.is_lost is None else self.is_lost)
        return detach_scores(scores), leaf, error

    def _messages(self, share: Share, own: Mapping[int, Scores]) -> Callable[[], Messages] | None:
        """Return what gives the messages of the whole batch; None if the model stores nothing."""
        made: dict[int, Messages] = {}
        with torch.no_grad():
            for number, batch in share.computed():
                messages = self.model.messages(batch, own[number])
                if messages is None:
                    return None
                made[number] = messages
        return self.reducer.messages(share, made)

    def _commit_slices(self, share: Share, scores: ShareScores | None) -> None:
        if scores is not None and scores.messages is not None:
            messages: Callable[[], Messages] | None = scores.messages
        else:
            own = self._scores_now(share) if scores is None else scores.own
            messages = self._messages(share, own)
        self.reducer.settle(share)
        with self._touching_state(), torch.no_grad():
            self.has_changed = True
            if messages is not None:
                events = NewEvents.of_host(share.host, share.num_new, self.device)
                self.model.store(events, messages())

    def _scores_now(self, share: Share) -> dict[int, Scores]:
        """Return what the model makes of the slices now, finite or not."""
        _fetch(share)
        own = {}
        for number, batch in share.computed():
            with self._evaluating(batch), self._reading(batch):
                own[number] = self.model(batch)
        return own


def _fetch(share: Share) -> None:
    """Have here what the slices read of a state that is spread over ranks."""
    if share.fetch is not None:
        share.fetch()


def detach_scores(scores: Scores) -> Scores:
    """Return scores without what their gradients need."""
    classes = None if scores.classes is None else scores.classes.detach()
    return Scores(scores.positive.detach(), scores.negative.detach(), scores.carry, classes)
