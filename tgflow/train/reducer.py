"""Scores, messages and gradients of a batch of which slices are computed apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tgflow.batch import Share
from tgflow.messages import Messages
from tgflow.model import Scores, TemporalModel
from tgflow.train.finite import TrainingDiverged
from tgflow.tree_sum import TreeSum


class SliceReducer:
    """Combines the slices of a batch; here all of them are computed in this process.

    `RankReducer` combines those of several ranks, which call the same methods in the same order.
    There, what `scores` and `messages` take may be sent later, with what follows: they return a
    function of the result, to be called when it is needed. `own` has the slices of
    `share.computed()`, in order, by number.
    """

    waits = False
    """Whether a step waits for what others send."""

    def wanted(self, num_slices: int) -> range:
        """Return the slices of each batch that are computed here, at least one."""
        return range(num_slices)

    def scores(self, share: Share, own: Mapping[int, Scores]) -> Callable[[], Scores] | None:
        """Return a function of the scores of all rows; None if only another rank has them."""
        joined = joined_scores(own)
        return lambda: joined

    def messages(self, share: Share, own: Mapping[int, Messages]) -> Callable[[], Messages]:
        """Return a function of the messages of all new events, in order.

        Rows that are not read (`Messages.rows_read`) may hold anything.
        """
        joined = Messages.joined([*own.values()])
        return lambda: joined

    def total(self, share: Share, leaves: TreeSum) -> Tensor:
        """Return the sum of the leaves of all slices, the same bits on all ranks."""
        return leaves.total()

    def settle(self, share: Share) -> None:
        """Complete the exchange of everything given so far: nothing else of the batch comes."""

    def agree(self, share: Share, error: TrainingDiverged | None) -> None:
        """Raise on all ranks if a prediction of any of them is not finite.

        That may be late: then the next call raises it (`TrainingDiverged.is_late`).
        """
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
    """Returns the messages of the whole batch, if they were sent already."""

    @property
    def positive(self) -> Tensor:
        """Float `[B]`: the whole batch's events."""
        assert self.whole is not None, "only another rank has the scores of all rows"
        return self.whole().positive

    @property
    def negative(self) -> Tensor:
        """Float `[B, m]`."""
        assert self.whole is not None, "only another rank has the scores of all rows"
        return self.whole().negative


AnyScores = Scores | ShareScores


def score_values(scores: AnyScores) -> dict[str, Tensor]:
    """Return all scores by name; nothing if only another rank has them."""
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
