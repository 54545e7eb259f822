"""What ranks send each other of a batch's slices: scores, and rows for the model's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from tgflow.batch import Share
from tgflow.distributed.mail_routes import MailRoutes
from tgflow.distributed.parcel import Spec
from tgflow.messages import Messages
from tgflow.model import Scores
from tgflow.peers import Shard
from tgflow.train.reducer import joined_scores


class ScoreParcel:
    """The scores of a batch, of which each rank has computed those of its own slices.

    Args:
        share: What is computed here.
        own: Its scores.
    """

    def __init__(self, share: Share, own: Mapping[int, Scores]) -> None:
        self._share = share
        self._own = joined_scores(own)
        self._whole: Scores | None = None

    def packed(self) -> Tensor:
        """Return what is sent from here, uint8 `[num_bytes]`."""
        return torch.cat([_bytes_of(self._own.positive), _bytes_of(self._own.negative)])

    def num_bytes(self, numbers: range) -> int:
        """Return how much whoever computes these slices sends."""
        return sum(self._sizes(numbers))

    def _sizes(self, numbers: range) -> list[int]:
        """Return the bytes of positive and of negative scores."""
        positive, negative = self._own.positive, self._own.negative
        num_rows = self._share.rows_of(numbers[-1]).stop - self._share.rows_of(numbers[0]).start
        return [
            num_rows * positive.element_size(),
            num_rows * negative.shape[1] * negative.element_size(),
        ]

    def arrive(self, parts: Sequence[tuple[range, Tensor]]) -> None:
        """Take what everyone has sent, in the order of slices, with which slices it is of."""
        pairs = [torch.split(part, self._sizes(numbers)) for numbers, part in parts]
        positive, negative = (torch.cat(column) for column in zip(*pairs, strict=True))
        own = self._own
        self._whole = Scores(
            positive.view(own.positive.dtype),
            negative.view(own.negative.dtype).view(len(self._share), own.negative.shape[1]),
        )

    def whole(self) -> Scores:
        """Return the scores of all rows, in order, once they have arrived."""
        assert self._whole is not None, "scores are read before they were sent"
        return self._whole


class StoredRows(Protocol):
    """What a batch's new events leave for a model's state, on its way to those who store it."""

    kind: str
    """What it is called in parcels and in `Traffic`."""

    def sends(self) -> Sequence[Tensor]:
        """Return what each rank gets, uint8 `[R, W]`: all columns of R rows, side by side."""
        ...

    def specs(self) -> Sequence[Spec]:
        """Return dtype and shape of what comes from each rank."""
        ...

    def arrive(self, parts: Sequence[Tensor]) -> None:
        """Take what each rank has sent."""
        ...

    def whole(self) -> Messages:
        """Return the messages of all new events, in order, once they have arrived."""
        ...


class RowParcel:
    """What a batch's new events leave for a state that every rank has: of all rows those that are
    read travel.

    Which these are is known to all from the log, so nobody sends how many come.

    Args:
        owned: The slices of each rank.
        share: What is computed here.
        own: Its messages.
    """

    kind = "rows"

    def __init__(self, owned: Sequence[range], share: Share, own: Mapping[int, Messages]) -> None:
        self._owned, self._share = owned, share
        self._own = Messages.joined([*own.values()])
        self._read = self._own.rows_read(share.host, share.num_new)
        self._whole: Messages | None = None

    def sends(self) -> Sequence[Tensor]:
        """Return what each rank gets: all get the same. See `StoredRows`."""
        first, places = self._rows_of(self._share.numbers)
        rows = self._read[places] - first
        columns = [column.index_select(0, rows.to(column.device)) for column in self._own.columns]
        return [_side_by_side(columns, len(rows))] * len(self._owned)

    def specs(self) -> Sequence[Spec]:
        """Return dtype and shape of what comes from each rank."""
        width = sum(_widths(self._own.columns))
        places = (self._rows_of(numbers)[1] for numbers in self._owned)
        return [(torch.uint8, (place.stop - place.start, width)) for place in places]

    def _rows_of(self, numbers: range) -> tuple[int, slice]:
        """Return the first row of some slices, and which of the rows that are read are theirs."""
        start = self._share.new_rows_of(numbers[0]).start * self._own.per_event
        stop = self._share.new_rows_of(numbers[-1]).stop * self._own.per_event
        first, last = torch.searchsorted(self._read, torch.tensor([start, stop])).tolist()
        return start, slice(first, last)

    def arrive(self, parts: Sequence[Tensor]) -> None:
        """Take what each rank has sent, whose slices are in the order of the ranks."""
        columns = map(self._column, _apart(torch.cat([*parts]), self._own.columns))
        self._whole = Messages(tuple(columns), self._own.per_event, self._own.last_only)

    def _column(self, rows: Tensor) -> Tensor:
        """Return a column of all rows of which those that are read have come."""
        num_rows = self._own.per_event * self._share.num_new
        if len(rows) == num_rows:
            return rows
        column = rows.new_empty(num_rows, *rows.shape[1:])
        return column.index_copy_(0, self._read.to(rows.device), rows)

    def whole(self) -> Messages:
        """Return the messages of all new events, in order, once they have arrived."""
        assert self._whole is not None, "messages are stored before they were sent"
        return self._whole


class OwnerParcel:
    """What a batch's new events leave for a state of which each rank has its own nodes': a row
    travels to the owner of its receiver. See `MailRoutes`.

    Args:
        shard: Of this rank.
        share: What is computed here.
        own: Its messages.
    """

    kind = "memory stored"

    def __init__(self, shard: Shard, share: Share, own: Mapping[int, Messages]) -> None:
        self._routes = MailRoutes(shard, share, own)
        self._like = next(iter(own.values())).columns
        self._whole: Messages | None = None

    def sends(self) -> Sequence[Tensor]:
        """Return what each rank gets. See `StoredRows`."""
        return [_side_by_side(columns, len(columns[0])) for columns in self._routes.sends()]

    def specs(self) -> Sequence[Spec]:
        """Return dtype and shape of what comes from each rank."""
        width = sum(_widths(self._like))
        return [(torch.uint8, (specs[0][1][0], width)) for specs in self._routes.specs()]

    def arrive(self, parts: Sequence[Tensor]) -> None:
        """Take what each rank has sent."""
        self._whole = self._routes.joined([_apart(part, self._like) for part in parts])

    def whole(self) -> Messages:
        """Return the messages, zeros where the receiver is another rank's."""
        assert self._whole is not None, "messages are stored before they were sent"
        return self._whole


def _widths(columns: Sequence[Tensor]) -> list[int]:
    """Return the bytes of a row of each column."""
    return [prod(column.shape[1:]) * column.element_size() for column in columns]


def _side_by_side(columns: Sequence[Tensor], num_rows: int) -> Tensor:
    """Return columns of `num_rows` rows as uint8 `[num_rows, W]`."""
    if not columns:
        return torch.empty(num_rows, 0, dtype=torch.uint8)
    widths = zip(columns, _widths(columns), strict=True)
    return torch.cat([_bytes_of(column).view(num_rows, width) for column, width in widths], 1)


def _apart(rows: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return the columns of which `_side_by_side` made `rows`, each as one of `like`."""
    pieces = torch.split(rows, _widths(like), dim=1) if like else ()
    return [
        piece.clone(memory_format=torch.contiguous_format)  # where it may be read as any dtype
        .view(column.dtype)
        .view(len(rows), *column.shape[1:])
        for piece, column in zip(pieces, like, strict=True)
    ]


def _bytes_of(tensor: Tensor) -> Tensor:
    """Return a tensor as uint8 `[n]`."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
