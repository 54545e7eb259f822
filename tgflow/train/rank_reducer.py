"""Slices of a batch that ranks compute: what they came to travels in one parcel for each update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

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
)
from tgflow.distributed.parcel import Spec, exchange_parcels
from tgflow.distributed.reduce import GRADIENT, Reduction
from tgflow.messages import Messages
from tgflow.model import Scores, TemporalModel
from tgflow.peers import Peers
from tgflow.schedule import SliceSchedule
from tgflow.state import SpreadState
from tgflow.train.finite import BatchPlace, TrainingDiverged, elsewhere
from tgflow.train.rank_control import RankControl
from tgflow.train.reducer import LocalReducer, SliceReducer
from tgflow.train.slice_parcels import OwnerParcel, RowParcel, ScoreParcel, StoredRows
from tgflow.tree_sum import TreeSum

_LOST_SPEC: Spec = (torch.uint8, (1,))


class RankReducer:
    """Brings together what the ranks of a world have computed: a `SliceReducer`.

    An update is two collectives. One exchanges parcels: parts of gradients, with loss and what is
    not finite; rows for the model's state; scores and figures to rank 0; its order to all. The
    other one gathers the sums of the parts. What is predicted waits for the parcel of the first
    update after it; only where nothing is learned is it sent by itself, in one exchange. So scores
    that are not finite are found out by all with the next parcel: by who has computed them, too.

    Rows for the state go to all ranks, or to the owners of their nodes where each rank has the
    state of its own nodes (`SpreadState`). Rank 0 alone gets scores.

    Args:
        peers: The ranks, more than one.
        slices: How many a batch is cut into.
        model: Whose parameters all ranks must have alike.
        device: Where it is.
        control: Gets orders and figures.

    Raises:
        WorldError: If there are more ranks than slices.
    """

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
        self._is_spread = isinstance(model.state, SpreadState)
        self._reduction: Reduction | None = None
        self._step = 0
        self._scores: list[ScoreParcel] = []
        self._rows: StoredRows | None = None
        self._predicted: tuple[Share, TrainingDiverged | None] | None = None

    def wanted(self, num_slices: int) -> range:
        """Return the slices of this rank."""
        assert num_slices == self._slices
        return self._owned[self._peers.rank]

    def agree(self, share: Share, error: TrainingDiverged | None) -> None:
        """Have the next parcel say whether what was predicted is finite."""
        self._predicted = (share, error)

    def scores(self, share: Share, own: Mapping[int, Scores]) -> Callable[[], Scores] | None:
        """Send scores to rank 0 with the next parcel."""
        parcel = ScoreParcel(share, own)
        self._scores.append(parcel)
        return parcel.whole if self._peers.rank == 0 else None

    def messages(self, share: Share, own: Mapping[int, Messages]) -> Callable[[], Messages]:
        """Send rows to those who store them with the next parcel."""
        self._rows = (
            OwnerParcel(self._peers.shard, share, own)
            if self._is_spread
            else RowParcel(self._owned, share, own)
        )
        return self._rows.whole

    def total(self, share: Share, leaves: TreeSum) -> Tensor:
        """Send parts of the leaves, and all that waits; return the sum over all ranks."""
        reduction = self._reduction
        if reduction is None:
            reduction = Reduction(self._peers, self._slices, len(leaves.roots[0][1]))
            self._reduction = reduction
        chunks = reduction.sends(leaves)
        parcels = self._exchange(chunks, reduction.specs(chunks[0].dtype))
        return reduction.finish([parcel[GRADIENT] for parcel in parcels])

    def settle(self, share: Share) -> None:
        """Send what waits, if anything does."""
        if self._scores or self._rows is not None:
            self._exchange(None, None)

    def _exchange(
        self, chunks: Sequence[Tensor] | None, specs: Sequence[Spec] | None
    ) -> list[dict[str, Tensor]]:
        """Send each rank its parcel; take in, and return, what all of them have sent."""
        step, self._step = self._step, self._step + 1
        sends, expected = self._sends(step, chunks), self._expected(step, specs)
        parcels = exchange_parcels(self._peers, STEP, step, sends, expected)
        if _has_checksum(step):
            check_alike([parcel["checksum"] for parcel in parcels], "the parameters")
        self._hear(parcels)
        self._deliver(parcels)
        self._check_predicted(parcels)
        return parcels

    def _sends(self, step: int, chunks: Sequence[Tensor] | None) -> list[dict[str, Tensor]]:
        """Return what each rank is sent, by name, in the order of `_expected`."""
        error = None if self._predicted is None else self._predicted[1]
        lost = torch.tensor([error is not None], dtype=torch.uint8)
        sends = [{"lost": lost} for _ in self._owned]
        if self._rows is not None:
            for send, rows in zip(sends, self._rows.sends(), strict=True):
                send[self._rows.kind] = rows
        if _has_checksum(step):
            found = checksum(dict(self._model.named_parameters()))
            for send in sends:
                send["checksum"] = found
        for rank, chunk in enumerate(chunks or ()):
            sends[rank][GRADIENT] = chunk
        if self._scores:
            sends[0]["scores"] = torch.cat([each.packed() for each in self._scores])
        sends[0]["figures"] = self._control.own_figures().to_tensor()
        if self._peers.rank == 0:
            word = self._control.word().to_tensor()
            for send in sends:
                send["order"] = word
        return [{name: x.to(self._device) for name, x in send.items()} for send in sends]

    def _expected(self, step: int, specs: Sequence[Spec] | None) -> list[dict[str, Spec]]:
        """Return dtypes and shapes of what each rank sends here, by name."""
        rows = [{} for _ in self._owned] if self._rows is None else self._expected_rows(self._rows)
        return [self._expected_of(step, rank, each, specs) for rank, each in enumerate(rows)]

    @staticmethod
    def _expected_rows(rows: StoredRows) -> list[dict[str, Spec]]:
        return [{rows.kind: spec} for spec in rows.specs()]

    def _expected_of(
        self, step: int, rank: int, rows: Mapping[str, Spec], specs: Sequence[Spec] | None
    ) -> dict[str, Spec]:
        leads, owned = self._peers.rank == 0, self._owned[rank]
        expected = {"lost": _LOST_SPEC, **rows}
        if _has_checksum(step):
            expected["checksum"] = CHECKSUM_SPEC
        if specs is not None:
            expected[GRADIENT] = specs[rank]
        if leads and self._scores:
            num_bytes = sum(each.num_bytes(owned) for each in self._scores)
            expected["scores"] = (torch.uint8, (num_bytes,))
        if leads:
            expected["figures"] = FIGURES_SPEC
        if rank == 0:
            expected["order"] = ORDER_SPEC
        return expected

    def _hear(self, parcels: Sequence[Mapping[str, Tensor]]) -> None:
        """Take rank 0's order, and on rank 0 the figures of all."""
        figures: tuple[RankFigures, ...] = ()
        if self._peers.rank == 0:
            figures = tuple(RankFigures.from_tensor(parcel["figures"]) for parcel in parcels)
        self._control.hear(Order.from_tensor(parcels[0]["order"]), figures)

    def _deliver(self, parcels: Sequence[Mapping[str, Tensor]]) -> None:
        """Give scores and rows to those who wait for them."""
        scores, self._scores = self._scores, []
        if self._peers.rank == 0 and scores:
            sizes = [[each.num_bytes(owned) for each in scores] for owned in self._owned]
            parts = [
                torch.split(parcel["scores"], of_rank)
                for parcel, of_rank in zip(parcels, sizes, strict=True)
            ]
            for number, each in enumerate(scores):
                of_each = [part[number] for part in parts]
                each.arrive([*zip(self._owned, of_each, strict=True)])
        rows, self._rows = self._rows, None
        if rows is not None:
            rows.arrive([parcel[rows.kind] for parcel in parcels])

    def _check_predicted(self, parcels: Sequence[Mapping[str, Tensor]]) -> None:
        """Raise if what a rank had predicted was not finite."""
        predicted, self._predicted = self._predicted, None
        if predicted is None or not any(bool(parcel["lost"]) for parcel in parcels):
            return
        share, error = predicted
        error = elsewhere(BatchPlace.of(share)) if error is None else error
        error.is_late = True
        raise error


def _has_checksum(step: int) -> bool:
    return step % CHECKED_EVERY == 0


def reducer_of(
    peers: Peers,
    slices: int,
    model: TemporalModel,
    device: torch.device,
    control: RankControl,
) -> SliceReducer:
    """Return what brings slices together, for the ranks that there are; see `RankReducer`."""
    if peers.world == 1:
        return LocalReducer()
    return RankReducer(peers, slices, model, device, control)
