"""Scores, messages and gradients of a batch of which slices, or ranks, are computed apart.

Ranks exchange a parcel for each update, with orders and figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from tgflow.batch import Share
from tgflow.distributed.control import (
    CHECKED_EVERY,
    CHECKSUM_SPEC,
    FIGURES_SPEC,
    ORDER_SPEC,
    STEP,
    Order,
    RankFigures,
    check_alike,
    checksum,
    decide,
)
from tgflow.distributed.mail_routes import MailRoutes
from tgflow.distributed.parcel import Spec, exchange_parcels
from tgflow.distributed.reduce import GRADIENT, Reduction
from tgflow.messages import Messages
from tgflow.model import Scores, TemporalModel
from tgflow.peers import Peers
from tgflow.schedule import SliceSchedule
from tgflow.state import SpreadState
from tgflow.train.finite import BatchPlace, TrainingDiverged, elsewhere
from tgflow.tree_sum import TreeSum

_LOST_SPEC: Spec = (torch.uint8, (1,))


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
        assert self.whole is not None, "only another rank has the scores of all rows"
        return self.whole().positive

    @property
    def negative(self) -> Tensor:
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


class RankControl:
    """Sends the orders that a runner asks for to all ranks.

    An order is asked for until the runner takes it back. It reaches rank 0 with this rank's
    figures, and comes back as the order of a later micro-batch: of the next one, if rank 0 asks
    itself. All ranks have the same order after the same micro-batch.
    """

    def __init__(self, peers: Peers, compute_seconds: Callable[[], float]) -> None:
        self._peers, self.compute_seconds = peers, compute_seconds
        self.asks = Order.NONE
        """Orders that this rank asks for; for a runner to set, from any thread."""
        self.memory_bytes = 0
        """Memory of this process; for a runner to set."""
        self.order = Order.NONE
        """Order to all ranks after the latest micro-batch."""
        self.figures: tuple[RankFigures, ...] = ()
        """Of each rank, as of the latest micro-batch; on rank 0 of several."""

    def begin(self) -> None:
        """Begin a micro-batch, which has no order yet."""
        self.order = self.asks if self._peers.world == 1 else Order.NONE


class RankReducer(SliceReducer):
    """Combines what the ranks of a world have computed.

    An update is two collectives. One exchanges parcels: parts of gradients, with loss and what is
    not finite; rows for the model's state; scores and figures to rank 0; its order to all. The
    other one gathers the sums of the parts. What is predicted waits for the parcel of the first
    update after it; only where nothing is learned is it sent by itself, in one exchange. All ranks
    therefore learn with the next parcel that predicted scores are not finite.

    Rows for the state go to all ranks, or to the owners of their nodes where each rank has the
    state of its own nodes (`SpreadState`). Rank 0 alone gets scores.
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
        found = joined_scores(own)
        like = [found.positive, found.negative]
        counts = [share.rows_of(n[-1]).stop - share.rows_of(n[0]).start for n in self._owned]
        sends = [_side_by_side(like, len(found.positive))]

        def joined(parts: Sequence[Tensor]) -> Scores:
            return Scores(*_apart(torch.cat([*parts]), like))

        rows = _Rows("scores", like, sends, counts, joined)
        self._scores.append(rows)
        return rows.whole if self._peers.rank == 0 else None

    def messages(self, share: Share, own: Mapping[int, Messages]) -> Callable[[], Messages]:
        spread = isinstance(self._model.state, SpreadState)
        self._stored = self._to_owners(share, own) if spread else self._to_all(share, own)
        return self._stored.whole

    def _to_all(self, share: Share, parts: Mapping[int, Messages]) -> _Rows:
        """Return the rows that are read, by the log alone: so all ranks know how many come."""
        own = Messages.joined([*parts.values()])
        read = own.rows_read(share.host, share.num_new)

        def span(numbers: range) -> tuple[int, slice]:
            """Return the first row of some slices, and their places among the rows read."""
            start = share.new_rows_of(numbers[0]).start * own.per_event
            stop = share.new_rows_of(numbers[-1]).stop * own.per_event
            first, last = torch.searchsorted(read, torch.tensor([start, stop])).tolist()
            return start, slice(first, last)

        def whole(column: Tensor) -> Tensor:
            num_rows = own.per_event * share.num_new
            if len(column) == num_rows:
                return column
            out = column.new_empty(num_rows, *column.shape[1:])
            return out.index_copy_(0, read.to(column.device), column)

        def joined(found: Sequence[Tensor]) -> Messages:
            columns = map(whole, _apart(torch.cat([*found]), own.columns))
            return Messages(tuple(columns), own.per_event, own.last_only)

        first, places = span(share.numbers)
        rows = read[places] - first
        columns = [column.index_select(0, rows.to(column.device)) for column in own.columns]
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

    def total(self, share: Share, leaves: TreeSum) -> Tensor:
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
        """Send each rank its parcel; take in, and return, what all of them have sent."""
        step, self._step = self._step, self._step + 1
        scores, self._scores = self._scores, []
        stored, self._stored = self._stored, None
        predicted, self._predicted = self._predicted, None
        world, leads = len(self._owned), self._peers.rank == 0
        sends: list[dict[str, Tensor]] = [{} for _ in range(world)]
        expected: list[dict[str, Spec]] = [{} for _ in range(world)]

        def add(name: str, tensors: Sequence[Tensor], specs: Sequence[Spec]) -> None:
            """Send the first ranks these tensors; take these from the first ranks."""
            for send, tensor in zip(sends, tensors, strict=False):
                send[name] = tensor.to(self._device)
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
            asks=control.asks,
        )
        add("figures", [figures.to_tensor()], [FIGURES_SPEC] * world if leads else [])
        order = decide(control.asks, control.figures[1:]).to_tensor()  # of what all ranks ask for
        add("order", [order] * world if leads else [], [ORDER_SPEC])
        parcels = exchange_parcels(self._peers, STEP, step, sends, expected)
        if step % CHECKED_EVERY == 0:
            check_alike([parcel["checksum"] for parcel in parcels], "the parameters")
        control.order |= Order.from_tensor(parcels[0]["order"])
        control.figures = (
            tuple(RankFigures.from_tensor(p["figures"]) for p in parcels) if leads else ()
        )
        if leads and scores:
            parts = [torch.split(p["scores"], n) for p, n in zip(parcels, sizes, strict=True)]
            for each, of_ranks in zip(scores, zip(*parts, strict=True), strict=True):
                each.arrive([x.view(spec[1]) for x, spec in zip(of_ranks, each.specs, strict=True)])
        if stored is not None:
            stored.arrive([parcel[stored.kind] for parcel in parcels])
        if predicted is not None and any(bool(parcel["lost"]) for parcel in parcels):
            share, error = predicted
            error = elsewhere(BatchPlace.of(share)) if error is None else error
            error.is_late = True
            raise error
        return parcels


class _Rows:
    """Rows on their way between ranks: their columns side by side, uint8 `[R, W]`."""

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
        assert self._whole is not None, f"{self.kind} are read before they were sent"
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
    """Return the columns of which `_side_by_side` made `rows`, each as one of `like`."""
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
    """Return what combines the slices of a world; see `RankReducer`."""
    return (
        SliceReducer() if peers.world == 1 else RankReducer(peers, slices, model, device, control)
    )
