"""How slices of a batch become one step: where others have computed some of them, by their help."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tgflow.batch import Share
from tgflow.messages import Messages
from tgflow.model import Scores, TemporalModel
from tgflow.train.finite import TrainingDiverged
from tgflow.tree_sum import TreeSum


class SliceReducer(Protocol):
    """Makes of what was computed of some slices what the whole batch came to.

    Whoever learns together calls the same methods in the same order. What `scores` and `messages`
    are given may be sent later, with what follows: they return a function of what comes back, which
    may be called any number of times, from when it is needed on.

    `own` has the slices of `share.computed()`, in order, by number.
    """

    def wanted(self, num_slices: int) -> range:
        """Return which slices of each batch are computed here, at least one."""
        ...

    def scores(self, share: Share, own: Mapping[int, Scores]) -> Callable[[], Scores] | None:
        """Return what gives the scores of the whole batch, in the order of its rows.

        None where they are not: only somebody else is given them.
        """
        ...

    def messages(self, share: Share, own: Mapping[int, Messages]) -> Callable[[], Messages]:
        """Return what gives the messages of all new events, in order.

        Rows that are not read (`Messages.rows_read`) may hold anything.
        """
        ...

    def total(self, share: Share, leaves: TreeSum) -> Tensor:
        """Return the sum of the leaves of all slices in the order of their tree, which is the same
        for all who learn together.

        Args:
            share: The slices that are computed here.
            leaves: Those of `share.numbers`, added in order, each as `Leaves` makes it; their sums
                may be overwritten.

        Raises:
            TrainingDiverged: Late, if what was predicted before is not finite; see `agree`.
        """
        ...

    def settle(self, share: Share) -> None:
        """Have everything that was given so far arrive: nothing else of the batch comes.

        Raises:
            TrainingDiverged: Late, if what was predicted before is not finite; see `agree`.
        """
        ...

    def agree(self, share: Share, error: TrainingDiverged | None) -> None:
        """Raise where something that was predicted is not finite, alike for all.

        That may be late: what is called next raises it then (`TrainingDiverged.is_late`).

        Args:
            share: Of which it was.
            error: Names it, if it is here.

        Raises:
            TrainingDiverged: If it is here or elsewhere.
        """
        ...


class LocalReducer:
    """All slices are computed here, one after the other."""

    def wanted(self, num_slices: int) -> range:
        """Return all slices."""
        return range(num_slices)

    def scores(self, share: Share, own: Mapping[int, Scores]) -> Callable[[], Scores]:
        """Join the scores of the slices."""
        joined = joined_scores(own)
        return lambda: joined

    def messages(self, share: Share, own: Mapping[int, Messages]) -> Callable[[], Messages]:
        """Join the messages of the slices."""
        joined = Messages.joined([*own.values()])
        return lambda: joined

    def total(self, share: Share, leaves: TreeSum) -> Tensor:
        """Add the leaves."""
        return leaves.total()

    def settle(self, share: Share) -> None:
        """Do nothing: all has been here."""

    def agree(self, share: Share, error: TrainingDiverged | None) -> None:
        """Raise what was found."""
        if error is not None:
            raise error


@dataclass(slots=True, eq=False)
class ShareScores:
    """The scores of a batch of which slices were computed apart; as `tgflow.Scores`."""

    own: Mapping[int, Scores]
    """Of the slices that were computed here, with what their messages need."""
    whole: Callable[[], Scores] | None
    """Returns those of all rows, if they come here."""
    messages: Callable[[], Messages] | None = None
    """Returns what the whole batch leaves for the state, where that is on its way."""

    @property
    def positive(self) -> Tensor:
        """Float `[B]`: the whole batch's events."""
        return self._here().positive

    @property
    def negative(self) -> Tensor:
        """Float `[B, m]`."""
        return self._here().negative

    def _here(self) -> Scores:
        assert self.whole is not None, "the scores of all rows are given to somebody else"
        return self.whole()


AnyScores = Scores | ShareScores
"""Of `tgflow.batch.AnyBatch`."""


def score_values(scores: AnyScores) -> dict[str, Tensor]:
    """Return positive and negative scores of all rows by name; nothing if they are not here.

    Of a task that predicts labels their logits are `classes`.
    """
    if isinstance(scores, ShareScores) and scores.whole is None:
        return {}
    values = {"positive": scores.positive, "negative": scores.negative}
    if isinstance(scores, Scores) and scores.classes is not None:
        values["classes"] = scores.classes
    return values


def check_sliceable(model: TemporalModel, slices: int) -> None:
    """Raise ValueError if batches are cut into slices, and a model stores whole ones alone."""
    takes_whole = type(model).commit is not TemporalModel.commit and model.state is not None
    if slices > 1 and takes_whole:
        raise ValueError(
            f"{type(model).__name__} has a commit of its own, which stores whole batches, and they "
            f"are cut into {slices} slices: give it messages and store in its place, or leave "
            "slices at 1 (--slices 1)"
        )


def joined_scores(parts: Mapping[int, Scores]) -> Scores:
    """Return the scores of slices next to each other as those of one batch."""
    columns = [(each.positive, each.negative) for each in parts.values()]
    positive, negative = (torch.cat(column) for column in zip(*columns, strict=True))
    return Scores(positive, negative)
