"""Learners in threads of one process that share the slices of each batch, and meet to add them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from tgflow.messages import Messages
from tgflow.model import Scores
from tgflow.share import Share
from tgflow.train.finite import BatchPlace, TrainingDiverged, elsewhere
from tgflow.train.reducer import joined_scores
from tgflow.tree_sum import TreeSum

T = TypeVar("T")


class Meeting:
    """Where threads leave what the others take.

    Args:
        cuts: Between which slices the threads' parts lie: [0, 1, 4] is slice 0, then 1 to 3.
    """

    def __init__(self, cuts: Sequence[int]) -> None:
        self.cuts = cuts
        self.world = len(cuts) - 1
        self._barrier = threading.Barrier(self.world, timeout=60)
        self._left: list[Any] = [None] * self.world

    def all_of(self, rank: int, value: Any) -> list[Any]:
        """Return what each thread has called this with."""
        self._left[rank] = value
        self._barrier.wait()
        found = [*self._left]
        self._barrier.wait()
        return found

    def run(self, work: Callable[[SplitReducer], T]) -> list[T]:
        """Return what `work` returns in each thread."""
        with ThreadPoolExecutor(self.world) as pool:
            return list(pool.map(self._run, [work] * self.world, range(self.world)))

    def _run(self, work: Callable[[SplitReducer], T], rank: int) -> T:
        try:
            return work(SplitReducer(self, rank))
        except BaseException:
            self._barrier.abort()
            raise


class SplitReducer:
    """A `SliceReducer` that sends as ranks would: subtrees' sums, and rows that are read."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting, self._rank = meeting, rank

    def wanted(self, num_slices: int) -> range:
        first, stop = self._meeting.cuts[self._rank : self._rank + 2]
        assert self._meeting.cuts[-1] == num_slices
        return range(first, stop)

    def scores(self, share: Share, own: Mapping[int, Scores]) -> Callable[[], Scores]:
        parts = self._meeting.all_of(self._rank, own)
        whole = joined_scores({n: scores for part in parts for n, scores in part.items()})
        return lambda: whole

    def messages(self, share: Share, own: Mapping[int, Messages]) -> Callable[[], Messages]:
        mine = Messages.joined([*own.values()])
        read = mine.rows_read(share.host, share.num_new)
        sent = []
        for number, messages in own.items():
            rows, width = share.new_rows_of(number), messages.per_event
            first, stop = width * rows.start, width * rows.stop
            wanted = read[(read >= first) & (read < stop)]
            sent.append((wanted, [c.index_select(0, wanted - first) for c in messages.columns]))
        columns = [_nothing(c, mine.per_event * share.num_new) for c in mine.columns]
        for part in self._meeting.all_of(self._rank, sent):
            for rows, values in part:
                for column, value in zip(columns, values, strict=True):
                    column.index_copy_(0, rows, value)
        whole = Messages(tuple(columns), mine.per_event, mine.last_only)
        return lambda: whole

    def total(self, share: Share, leaves: TreeSum) -> Tensor:
        tree = TreeSum(share.num_slices)
        for roots in self._meeting.all_of(self._rank, leaves.roots):
            for root, values in roots:
                tree.add(root, values.clone())
        return tree.total()

    def agree(self, share: Share, error: TrainingDiverged | None) -> None:
        found = self._meeting.all_of(self._rank, error)
        if any(each is not None for each in found):
            raise elsewhere(BatchPlace.of(share)) if error is None else error


def _nothing(column: Tensor, num_rows: int) -> Tensor:
    """Return rows like those of `column` that nobody is to read."""
    value = math.nan if column.is_floating_point() else -(10**9)
    return torch.full((num_rows, *column.shape[1:]), value, dtype=column.dtype)
