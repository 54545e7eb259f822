"""Combines scores, messages and gradients of the slices of a batch, over ranks if there are any.

Ranks exchange one payload (parcel) per update, including orders and status.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from math import prod
from operator import or_
from typing import Any

import torch
from torch import Tensor

from tgflow.base.peers import Peers, Shard
from tgflow.base.slice_schedule import SliceSchedule
from tgflow.base.tree_sum import TreeSum, subtrees
from tgflow.graph.batch import Share
from tgflow.graph.stream_state import SpreadState
from tgflow.nn.messages import Messages
from tgflow.nn.model import Scores, TemporalModel
from tgflow.ranks.control import (
    CHECKED_EVERY,
    CHECKSUM_SPEC,
    FIGURES_SPEC,
    ORDER_SPEC,
    STEP,
    Order,
    RankControl,
    RankFigures,
    check_alike,
    checksum,
)
from tgflow.ranks.parcel import Spec, exchange_parcels

_LOST_SPEC: Spec = (torch.uint8, (1,))
_GRADIENT = "gradient"
"""Name of the sums in payloads and in `Traffic`."""


class SliceReducer:
    """Combines the slices of a batch; here all of them are computed in this process.

    `RankReducer` combines those of several ranks, which call the same methods in the same order.
    There, the arguments of `scores` and `messages` may be sent later, with the next payload: both
    return a function of the result, to be called when it is needed. `own` maps slice number to
    slice for `share.computed()`, in order.
    """

    waits = False
    """Whether a step waits for other ranks."""
    leads = True
    """Whether this process receives the scores of all rows."""

    def scores(self, share: Share, own: Mapping[int, Scores]) -> Callable[[], Scores] | None:
        """Return a function of the scores of all rows; None if only another rank has them."""
        joined = Scores(*share.in_order(concatenated_scores(own)[:2]))
        return lambda: joined

    def messages(self, share: Share, own: Mapping[int, Messages]) -> Callable[[], Messages]:
        """Return a function of the messages of all new events, in order.

        Rows that are not read (`Messages.rows_read`) may hold anything.
        """
        joined = Messages.joined([*own.values()])
        return lambda: joined

    def total(self, leaves: TreeSum) -> Tensor:
        """Return the sum of the leaves of all slices, the same bits on all ranks."""
        return leaves.total()

    def flush(self, share: Share) -> None:
        """Complete the exchange of everything given so far; no more of the batch follows."""

    def agree(self, share: Share, error: Exception | None) -> None:
        """Raise on all ranks if a prediction of any of them is not finite.

        It may be raised by the next call instead.
        """
        if error is not None:
            raise error


def concatenated_scores(parts: Mapping[int, Scores]) -> Scores:
    """Return the scores of slices, one slice after the other."""
    columns = [(each.positive, each.negative) for each in parts.values()]
    positive, negative = (torch.cat(column) for column in zip(*columns, strict=True))
    return Scores(positive, negative)


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


class RankReducer(SliceReducer):
    """Combines the results of the ranks of a world.

    An update is two collectives. The first exchanges payloads: shards of gradients, with loss and
    finite flags; rows for the model's state; scores and status to rank 0; its order to all. The
    second gathers the sums of the shards. Predictions are sent with the payload of the first update
    after them; without updates they take one exchange of their own. All ranks therefore learn with
    the next payload that predicted scores are not finite.

    Rows for the state go to all ranks, or to the owners of their nodes if the state is sharded
    (`SpreadState`). Only rank 0 gets scores.
    """

    waits = True

    def __init__(
        self,
        peers: Peers,
        slices: int,
        model: TemporalModel,
        control: RankControl,
        elsewhere: Callable[[Share], Exception],
    ) -> None:
        schedule = SliceSchedule(slices, peers.world)
        self._owned = [schedule.slices_of(rank) for rank in range(peers.world)]
        self._peers, self._slices, self._model, self._elsewhere = peers, slices, model, elsewhere
        self.leads = peers.rank == 0
        self._control = control
        self._roots = [subtrees(each, slices) for each in self._owned]
        self._step = 0
        self._scores: list[_Rows] = []
        self._stored: _Rows | None = None
        self._predicted: tuple[Share, Exception | None] | None = None

    def agree(self, share: Share, error: Exception | None) -> None:
        """Send whether a prediction is not finite with the next payload."""
        self._predicted = (share, error)

    def scores(self, share: Share, own: Mapping[int, Scores]) -> Callable[[], Scores] | None:
        """Queue scores for rank 0."""
        found = concatenated_scores(own)
        like = [found.positive, found.negative]
        counts = [len(share.rows_of(numbers)) for numbers in self._owned]
        sends = [_side_by_side(like, len(found.positive))]

        def joined(parts: Sequence[Tensor]) -> Scores:
            return Scores(*share.in_order(_apart(torch.cat([*parts]), like)))

        rows = _Rows("scores", like, sends, counts, joined)
        self._scores.append(rows)
        return rows.whole if self.leads else None

    def messages(self, share: Share, own: Mapping[int, Messages]) -> Callable[[], Messages]:
        """Queue the rows of messages for the ranks that store them."""
        spread = isinstance(self._model.state, SpreadState)
        self._stored = self._to_owners(share, own) if spread else self._to_all(share, own)
        return self._stored.whole

    def _to_all(self, share: Share, parts: Mapping[int, Messages]) -> _Rows:
        """Return the rows that are read, from the log alone, so all ranks know the counts."""
        own = Messages.joined([*parts.values()])
        read = own.rows_read(share.host, share.num_new)

        def span(numbers: range) -> tuple[int, slice]:
            """Return the first row of some slices, and their positions among the rows read."""
            start = share.new_rows_of(numbers[0]).start * own.per_event
            stop = share.new_rows_of(numbers[-1]).stop * own.per_event
            first, last = torch.searchsorted(read, torch.tensor([start, stop])).tolist()
            return start, slice(first, last)

        def joined(found: Sequence[Tensor]) -> Messages:
            columns = tuple(_apart(torch.cat([*found]), own.columns))
            return replace(own, columns=columns).placed(read, own.per_event * share.num_new)

        first, places = span(share.numbers)
        rows = read[places] - first
        columns = own.taken(rows).columns
        sends = [_side_by_side(columns, len(rows))] * len(self._owned)
        counts = [place.stop - place.start for place in (span(n)[1] for n in self._owned)]
        return _Rows("rows", own.columns, sends, counts, joined)

    def _to_owners(self, share: Share, own: Mapping[int, Messages]) -> _Rows:
        """Return the rows of each receiver's owner; elsewhere its rows are zeros."""
        routes, like = MailRoutes(self._peers.shard, share, own), next(iter(own.values())).columns
        return _Rows(
            "memory stored",
            like,
            [_side_by_side(columns, len(columns[0])) for columns in routes.sends()],
            [specs[0][1][0] for specs in routes.specs()],
            lambda parts: routes.joined([_apart(part, like) for part in parts]),
        )

    def total(self, leaves: TreeSum) -> Tensor:
        """Sum over the ranks, with all that is queued in the same payload.

        Chunk c of the sum of every subtree goes to rank c, which adds them in the order of one
        process, and back to all.
        """
        peers, sums = self._peers, torch.stack([values for _, values in leaves.roots])
        assert [numbers for numbers, _ in leaves.roots] == self._roots[peers.rank]
        bounds = [sums.shape[1] * rank // peers.world for rank in range(peers.world + 1)]
        sizes = [stop - start for start, stop in pairwise(bounds)]
        specs: list[Spec] = [(sums.dtype, (len(each), sizes[peers.rank])) for each in self._roots]
        parcels = self._exchange(torch.split(sums, sizes, dim=1), specs)
        tree = TreeSum(self._slices)
        for roots, parcel in zip(self._roots, parcels, strict=True):
            for numbers, values in zip(roots, parcel[_GRADIENT], strict=True):
                tree.add(numbers, values)
        return peers.gather(tree.total(), sizes, kind=_GRADIENT)

    def flush(self, share: Share) -> None:
        """Send what is queued, if anything is."""
        if self._scores or self._stored is not None:
            self._exchange(None, ())

    def _exchange(
        self, chunks: Sequence[Tensor] | None, specs: Sequence[Spec]
    ) -> list[dict[str, Tensor]]:
        """Exchange payloads with all ranks; process and return the received ones."""
        step, self._step = self._step, self._step + 1
        scores, self._scores = self._scores, []
        stored, self._stored = self._stored, None
        predicted, self._predicted = self._predicted, None
        world, leads = len(self._owned), self.leads
        sends: list[dict[str, Tensor]] = [{} for _ in range(world)]
        expected: list[dict[str, Spec]] = [{} for _ in range(world)]

        def add(name: str, tensors: Sequence[Tensor], specs: Sequence[Spec]) -> None:
            """Send these tensors to the first ranks, and receive those of the first ranks."""
            for send, tensor in zip(sends, tensors, strict=False):
                send[name] = tensor
            for each, spec in zip(expected, specs, strict=False):
                each[name] = spec

        is_lost = predicted is not None and predicted[1] is not None
        add("lost", [torch.tensor([is_lost], dtype=torch.uint8)] * world, [_LOST_SPEC] * world)
        if stored is not None:
            add(stored.kind, stored.sends, stored.specs)
        if step % CHECKED_EVERY == 0:
            add("checksum", [checksum(dict(self._model.named_parameters()))] * world,
                [CHECKSUM_SPEC] * world)  # fmt: skip
        if chunks is not None:
            add(_GRADIENT, chunks, specs)
        sizes = [[prod(each.specs[rank][1]) for each in scores] for rank in range(world)]
        if scores:
            packed = torch.cat([each.sends[0].flatten() for each in scores])
            from_each: list[Spec] = [(torch.uint8, (sum(of_rank),)) for of_rank in sizes]
            add("scores", [packed], from_each if leads else [])
        control = self._control
        add("figures", [control.own_figures().to_tensor()], [FIGURES_SPEC] * world if leads else [])
        asked = reduce(or_, control.requests, control.request) & ~Order.HOLD  # rank 0 alone pauses
        add("order", [torch.tensor([int(asked)])] * world if leads else [], [ORDER_SPEC])
        parcels = exchange_parcels(self._peers, STEP, step, sends, expected)
        if step % CHECKED_EVERY == 0:
            check_alike([parcel["checksum"] for parcel in parcels], "the parameters")
        control.order |= Order(int(parcels[0]["order"]))
        if leads:
            control.figures = [RankFigures.from_tensor(parcel["figures"]) for parcel in parcels]
            control.set_requests([each.request for each in control.figures])
        if leads and scores:
            parts = [torch.split(p["scores"], n) for p, n in zip(parcels, sizes, strict=True)]
            for each, of_ranks in zip(scores, zip(*parts, strict=True), strict=True):
                each.arrive([x.view(spec[1]) for x, spec in zip(of_ranks, each.specs, strict=True)])
        if stored is not None:
            stored.arrive([parcel[stored.kind] for parcel in parcels])
        if predicted is not None and any(bool(parcel["lost"]) for parcel in parcels):
            share, error = predicted
            raise self._elsewhere(share) if error is None else error
        return parcels


class _Rows:
    """Rows being sent between ranks: concatenated columns, uint8 `[R, W]`."""

    def __init__(
        self,
        kind: str,
        like: Sequence[Tensor],
        sends: Sequence[Tensor],
        counts: Sequence[int],
        join: Callable[[Sequence[Tensor]], Any],
    ) -> None:
        self.kind, self.sends, self._join = kind, sends, join
        self.specs: list[Spec] = [(torch.uint8, (n, sum(_widths(like)))) for n in counts]
        self._whole: Any = None

    def arrive(self, parts: Sequence[Tensor]) -> None:
        self._whole = self._join(parts)

    def whole(self) -> Any:
        assert self._whole is not None, f"{self.kind} were read before they were exchanged"
        return self._whole


def _widths(columns: Sequence[Tensor]) -> list[int]:
    return [prod(column.shape[1:]) * column.element_size() for column in columns]


def _side_by_side(columns: Sequence[Tensor], num_rows: int) -> Tensor:
    """Return columns of `num_rows` rows as uint8 `[num_rows, W]`."""
    if not columns:
        return torch.empty(num_rows, 0, dtype=torch.uint8)
    flat = (x.detach().contiguous().reshape(-1).view(torch.uint8) for x in columns)
    return torch.cat(
        [x.view(num_rows, width) for x, width in zip(flat, _widths(columns), strict=True)], 1
    )


def _apart(rows: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return the columns from which `_side_by_side` made `rows`, each like one of `like`."""
    pieces = torch.split(rows, _widths(like), dim=1) if like else ()
    return [
        piece.clone(memory_format=torch.contiguous_format)  # where it may be read as any dtype
        .view(column.dtype)
        .view(len(rows), *column.shape[1:])
        for piece, column in zip(pieces, like, strict=True)
    ]
