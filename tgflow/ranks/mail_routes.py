"""Sends the rows of a batch's messages only to the owners of their receivers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from tgflow.base.peers import Shard
from tgflow.base.slice_schedule import SliceSchedule
from tgflow.graph.batch import Share
from tgflow.nn.messages import Messages
from tgflow.ranks.parcel import Spec


class MailRoutes:
    """Rows of a batch's messages that each rank computes, and the ranks that own their receivers.

    Derived from the log, so sizes need not be sent. A row that is not read, such as one replaced by
    a later one to the same node, is not sent. Owners order the rows by event, so `mean` adds in the
    same order as in one process. `own` are the messages of the slices computed here.
    """

    def __init__(self, shard: Shard, share: Share, own: Mapping[int, Messages]) -> None:
        self._mine = mine = Messages.joined([*own.values()])
        if mine.per_event != 2:
            raise ValueError(
                f"messages of {mine.per_event} row per event have no owner: sharded memory needs "
                "one row for the source and one for the destination of each event"
            )
        self._shard = shard
        self._num_rows = 2 * share.num_new
        schedule = SliceSchedule(share.num_slices, shard.world)
        firsts = [
            share.new_rows_of(schedule.slices_of(rank)[0]).start for rank in range(shard.world)
        ]
        self._bounds = [*(2 * first for first in firsts), self._num_rows]
        ends = torch.stack([share.host.src, share.host.dst], dim=1)[: share.num_new].flatten()
        read = mine.rows_read(share.host, share.num_new)
        self._rows = [self._between(read, *bounds) for bounds in pairwise(self._bounds)]
        self._owners = [shard.owner(ends.index_select(0, rows)) for rows in self._rows]

    @staticmethod
    def _between(read: Tensor, first: int, stop: int) -> Tensor:
        return read[(read >= first) & (read < stop)]

    def sends(self) -> list[list[Tensor]]:
        """Return the payload of each rank: of each message column, the rows that it owns."""
        rank = self._shard.rank
        rows, owners, first = self._rows[rank], self._owners[rank], self._bounds[rank]
        picked = [rows[owners == other] - first for other in range(self._shard.world)]
        return [
            [column.index_select(0, part.to(column.device)) for column in self._mine.columns]
            for part in picked
        ]

    def specs(self) -> list[list[Spec]]:
        """Return dtype and shape of the rows received from each rank."""
        return [
            [(column.dtype, (len(rows), *column.shape[1:])) for column in self._mine.columns]
            for rows in self._received()
        ]

    def joined(self, received: Sequence[Sequence[Tensor]]) -> Messages:
        """Return the messages of all new events from `specs`; rows whose receiver is not owned are
        zeros.
        """
        columns = [
            column.new_zeros(self._num_rows, *column.shape[1:]) for column in self._mine.columns
        ]
        for rows, values in zip(self._received(), received, strict=True):
            for column, value in zip(columns, values, strict=True):
                column.index_copy_(0, rows.to(column.device), value)
        return Messages(tuple(columns), 2, self._mine.last_only)

    def _received(self) -> list[Tensor]:
        rank = self._shard.rank
        return [rows[owners == rank] for rows, owners in zip(self._rows, self._owners, strict=True)]
