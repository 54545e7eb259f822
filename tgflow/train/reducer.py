"""Combines scores, messages and gradients of the slices of a batch, over ranks if there are any.

Ranks exchange one payload (parcel) per update, including orders and status.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from operator import or_
from typing import Any

import torch
from torch import Tensor

from tgflow.base.peers import Peers
from tgflow.base.slice_schedule import SliceSchedule
from tgflow.base.tree_sum import TreeSum
from tgflow.cuda.pinned import uploaded
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
    RankFigures,
    check_alike,
    checksum,
)
from tgflow.ranks.mail_routes import MailRoutes
from tgflow.ranks.parcel import Spec, exchange_parcels
from tgflow.ranks.reduce import GRADIENT, Reduction
from tgflow.train.finite import BatchPlace, TrainingDiverged, elsewhere

_LOST_SPEC: Spec = (torch.uint8, (1,))


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

    def wanted(self, num_slices: int) -> range:
        """Return the slices of each batch that are computed here, at least one."""
        return range(num_slices)

    def scores(self, share: Share, own: Mapping[int, Scores]) -> Callable[[], Scores] | None:
        """Return a function of the scores of all rows; None if only another rank has them."""
        joined = _in_order(share, concatenated_scores(own))
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

    def settle(self, share: Share) -> None:
        """Complete the exchange of everything given so far; no more of the batch follows."""

    def agree(self, share: Share, error: TrainingDiverged | None) -> None:
        """Raise on all ranks if a prediction of any of them is not finite.

        It may be raised by the next call instead.
        """
        if error is not None:
            raise error


@dataclass(slots=True, eq=False)
class ShareScores:
    """Scores of a batch whose slices were computed separately; as `tgflow.Scores`."""

    own: Mapping[int, Scores]
    """Scores of the slices computed here, with the inputs of their messages."""
    whole: Callable[[], Scores] | None
    """Returns the scores of all rows, if this rank receives them."""
    messages: Callable[[], Messages] | None = None
    """Returns the messages of the whole batch, if they were already sent."""

    @property
    def positive(self) -> Tensor:
        assert self.whole is not None, "only another rank has the scores of all rows"
        return self.whole().positive

    @property
    def negative(self) -> Tensor:
        assert self.whole is not None, "only another rank has the scores of all rows"
        return self.whole().negative


AnyScores = Scores | ShareScores


def score_values(scores: AnyScores) -> dict[str, Tensor]:
    """Return all scores by name; empty if only another rank has them."""
    if isinstance(scores, ShareScores) and scores.whole is None:
        return {}
    values = {"positive": scores.positive, "negative": scores.negative}
    if isinstance(scores, Scores) and scores.classes is not None:
        values["classes"] = scores.classes
    return values


def check_sliceable(model: TemporalModel, slices: int) -> None:
    """Raise ValueError if batches are sliced and a model stores only whole ones."""
    takes_whole = type(model).commit is not TemporalModel.commit and model.state is not None
    if slices > 1 and takes_whole:
        raise ValueError(
            f"{type(model).__name__} overrides commit, which stores whole batches, but they are "
            f"cut into {slices} slices: define messages and store instead, or leave slices at 1 "
            "(--slices 1)"
        )


def concatenated_scores(parts: Mapping[int, Scores]) -> Scores:
    """Return the scores of slices, one slice after the other."""
    columns = [(each.positive, each.negative) for each in parts.values()]
    positive, negative = (torch.cat(column) for column in zip(*columns, strict=True))
    return Scores(positive, negative)


def _in_order(share: Share, scores: Scores) -> Scores:
    """Return the concatenated scores of all slices in the order of the batch's rows."""
    order = share.rows_of(range(share.num_slices)).argsort()
    [place] = uploaded([order], scores.positive.device)
    return Scores(*(x.index_select(0, place) for x in (scores.positive, scores.negative)))


class RankControl:
    """Sends the orders requested by a runner to all ranks.

    A request stands until the runner withdraws it. It reaches rank 0 with this rank's status, and
    returns as the order of a later micro-batch: of the next one, if rank 0 requests it. All ranks
    have the same order after the same micro-batch.
    """

    def __init__(self, peers: Peers, compute_seconds: Callable[[], float]) -> None:
        self._peers, self.compute_seconds = peers, compute_seconds
        self.request = Order.NONE
        """Orders requested by this rank; set by a runner, from any thread."""
        self.memory_bytes = 0
        """Memory of this process; set by a runner."""
        self.order = Order.NONE
        """Order to all ranks after the latest micro-batch."""
        self.figures: Sequence[RankFigures] = ()
        """Status of each rank, as of the latest micro-batch; only on rank 0 of several."""
        self.requests: Sequence[Order] = ()
        """Latest request of each other rank, NONE for this one; only on rank 0 of several."""

    def begin(self) -> None:
        """Begin a micro-batch, which has no order yet."""
        self.order = self.request if self._peers.world == 1 else Order.NONE

    def set_requests(self, asked: Sequence[int]) -> None:
        """Take the requests of all ranks, with a micro-batch or while no events arrive."""
        obeyed = self.order & Order.CHECKPOINT  # they asked before they had this order
        self.requests = [Order.NONE, *(Order(each) & ~obeyed for each in asked[1:])]

    def requester(self, order: Order) -> str | None:
        """Return the name of another rank with this request, None if none is known."""
        return next(
            (f"rank {rank}" for rank, request in enumerate(self.requests) if order in request), None
        )


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
        device: torch.device,
        control: RankControl,
    ) -> None:
        schedule = SliceSchedule(slices, peers.world)
        self._owned = [schedule.slices_of(rank) for rank in range(peers.world)]
        self._peers, self._slices, self._model, self._device = peers, slices, model, device
        self.leads = peers.rank == 0
        self._control = control
        self._reduction: Reduction | None = None
        self._step = 0
        self._scores: list[_Rows] = []
        self._stored: _Rows | None = None
        self._predicted: tuple[Share, TrainingDiverged | None] | None = None

    def wanted(self, num_slices: int) -> range:
        assert num_slices == self._slices
        return self._owned[self._peers.rank]

    def agree(self, share: Share, error: TrainingDiverged | None) -> None:
        self._predicted = (share, error)

    def scores(self, share: Share, own: Mapping[int, Scores]) -> Callable[[], Scores] | None:
        found = concatenated_scores(own)
        like = [found.positive, found.negative]
        counts = [len(share.rows_of(numbers)) for numbers in self._owned]
        sends = [_side_by_side(like, len(found.positive))]

        def joined(parts: Sequence[Tensor]) -> Scores:
            return _in_order(share, Scores(*_apart(torch.cat([*parts]), like)))

        rows = _Rows("scores", like, sends, counts, joined)
        self._scores.append(rows)
        return rows.whole if self.leads else None

    def messages(self, share: Share, own: Mapping[int, Messages]) -> Callable[[], Messages]:
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

        def whole(column: Tensor) -> Tensor:
            num_rows = own.per_event * share.num_new
            if len(column) == num_rows:
                return column
            out = column.new_empty(num_rows, *column.shape[1:])
            return out.index_copy_(0, uploaded([read], column.device)[0], column)

        def joined(found: Sequence[Tensor]) -> Messages:
            columns = map(whole, _apart(torch.cat([*found]), own.columns))
            return Messages(tuple(columns), own.per_event, own.last_only)

        first, places = span(share.numbers)
        rows = read[places] - first
        [there] = uploaded([rows], self._device)
        columns = [column.index_select(0, there) for column in own.columns]
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
        if self._reduction is None:
            self._reduction = Reduction(self._peers, self._slices, len(leaves.roots[0][1]))
        chunks = self._reduction.sends(leaves)
        parcels = self._exchange(chunks, self._reduction.specs(chunks[0].dtype))
        return self._reduction.finish([parcel[GRADIENT] for parcel in parcels])

    def settle(self, share: Share) -> None:
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
            add(GRADIENT, chunks, specs)
        sizes = [[prod(each.specs[rank][1]) for each in scores] for rank in range(world)]
        if scores:
            packed = torch.cat([each.sends[0].flatten() for each in scores])
            from_each: list[Spec] = [(torch.uint8, (sum(of_rank),)) for of_rank in sizes]
            add("scores", [packed], from_each if leads else [])
        control = self._control
        figures = RankFigures.of(
            self._peers.traffic,
            compute_seconds=control.compute_seconds(),
            memory_bytes=control.memory_bytes,
            request=control.request,
        )
        add("figures", [figures.to_tensor()], [FIGURES_SPEC] * world if leads else [])
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
            raise elsewhere(BatchPlace.of(share)) if error is None else error
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


def reducer_of(
    peers: Peers, slices: int, model: TemporalModel, device: torch.device, control: RankControl
) -> SliceReducer:
    """Return the reducer of the slices of a world; see `RankReducer`."""
    return (
        SliceReducer() if peers.world == 1 else RankReducer(peers, slices, model, device, control)
    )
