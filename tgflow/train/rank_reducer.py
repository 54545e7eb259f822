"""Slices of a batch that ranks have computed, brought together: all hold what one process would."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import torch
from torch import Tensor

from tgflow.distributed.reduce import Reduction
from tgflow.messages import Messages
from tgflow.model import Scores
from tgflow.peers import Peers
from tgflow.schedule import SliceSchedule
from tgflow.share import Share
from tgflow.train.finite import BatchPlace, TrainingDiverged, elsewhere
from tgflow.train.reducer import joined_scores
from tgflow.tree_sum import TreeSum


class RankReducer:
    """Brings slices together over ranks; see `tgflow.train.reducer.SliceReducer`.

    Every rank gets all scores and all messages that are read, so each holds the whole state, and
    its metrics are those of one process.

    Args:
        peers: The ranks; all of them call the same methods in the same order.

    Example:
        >>> trainer = ContinualTrainer(model, graph, config, reducer=RankReducer(peers))
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._steps = 0
        self._reduction = lru_cache(maxsize=4)(self._new_reduction)

    def wanted(self, num_slices: int) -> range:
        """Return which slices of each batch this rank computes.

        Raises:
            WorldError: If there are more ranks than slices.
        """
        return SliceSchedule(num_slices, self._peers.world).slices_of(self._peers.rank)

    def scores(self, share: Share, own: Mapping[int, Scores]) -> Callable[[], Scores]:
        """Gather the scores of all rows."""
        mine = joined_scores(own)
        rows = torch.cat([mine.positive.unsqueeze(1), mine.negative], dim=1).contiguous()
        counts = [len(span) for span in self._spans(share, share.rows_of)]
        everyone = self._gather_rows(rows, counts, "scores")
        joined = Scores(everyone[:, 0], everyone[:, 1:])
        return lambda: joined

    def messages(self, share: Share, own: Mapping[int, Messages]) -> Callable[[], Messages]:
        """Gather the rows that are read, of all new events."""
        mine = Messages.joined([*own.values()])
        if not mine.columns:
            return lambda: mine
        read = mine.rows_read(share.host, share.num_new)
        each = mine.per_event
        spans = self._spans(share, share.new_rows_of)
        bounds = torch.tensor([[each * span.start, each * span.stop] for span in spans])
        first, last = torch.searchsorted(read, bounds).unbind(1)
        counts = (last - first).tolist()
        rank = self._peers.rank
        chosen = read[int(first[rank]) : int(last[rank])] - each * spans[rank].start
        columns = []
        for column in mine.columns:
            rows = column.index_select(0, chosen.to(column.device)).contiguous()
            found = self._gather_rows(rows, counts, "rows")
            whole = column.new_zeros(each * share.num_new, *column.shape[1:])
            columns.append(whole.index_copy_(0, read.to(column.device), found))
        joined = Messages(tuple(columns), each, mine.last_only)
        return lambda: joined

    def total(self, share: Share, leaves: TreeSum) -> Tensor:
        """Return the sum of the leaves of all ranks, with the bits of one process."""
        self._steps += 1
        length = len(leaves.roots[0][1])
        return self._reduction(share.num_slices, length).sum(self._steps, leaves)

    def agree(self, share: Share, error: TrainingDiverged | None) -> None:
        """Raise if a rank has found something that is not finite."""
        mine = torch.tensor([int(error is not None)])
        found = self._peers.gather(mine, [1] * self._peers.world, kind="scores")
        if bool(found.any()):
            raise elsewhere(BatchPlace.of(share)) if error is None else error

    def _new_reduction(self, slices: int, length: int) -> Reduction:
        return Reduction(self._peers, slices, length)

    def _spans(self, share: Share, rows_of: Callable[[int], range]) -> list[range]:
        """Return the rows that the slices of each rank have, next to each other."""
        schedule = SliceSchedule(share.num_slices, self._peers.world)
        slices = [schedule.slices_of(rank) for rank in range(self._peers.world)]
        return [range(rows_of(each[0]).start, rows_of(each[-1]).stop) for each in slices]

    def _gather_rows(self, rows: Tensor, counts: list[int], kind: str) -> Tensor:
        """Return the rows of all ranks in order, of which each has as many as `counts` says."""
        width = rows[0].numel() if len(rows) else rows.new_empty(1, *rows.shape[1:]).numel()
        flat = self._peers.gather(rows.reshape(-1), [count * width for count in counts], kind=kind)
        return flat.view(sum(counts), *rows.shape[1:])
