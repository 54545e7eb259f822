"""What ranks send each other of a batch's slices: scores, and rows for the model's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from tgflow.distributed.parcel import Spec
from tgflow.messages import Messages
from tgflow.model import Scores
from tgflow.share import Share
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


class RowParcel:
    """What a batch's new events leave for a model's state: of all rows those that are read travel.

    Which these are is known to all from the log, so nobody sends how many come.

    Args:
        share: What is computed here.
        own: Its messages.
    """

    def __init__(self, share: Share, own: Mapping[int, Messages]) -> None:
        self._share = share
        self._own = Messages.joined([*own.values()])
        self._read = self._own.rows_read(share.host, share.num_new)
        self._whole: Messages | None = None

    def packed(self) -> Tensor:
        """Return what is sent from here, uint8 `[R, W]`: all columns of R rows, side by side."""
        first, places = self._rows_of(self._share.numbers)
        rows = self._read[places] - first
        columns = [
            _bytes_of(column.index_select(0, rows.to(column.device))).view(len(rows), width)
            for column, width in zip(self._own.columns, self._widths(), strict=True)
        ]
        return torch.cat(columns, 1) if columns else torch.empty(len(rows), 0, dtype=torch.uint8)

    def spec(self, numbers: range) -> Spec:
        """Return dtype and shape of what whoever computes these slices sends."""
        _, places = self._rows_of(numbers)
        return torch.uint8, (places.stop - places.start, sum(self._widths()))

    def _rows_of(self, numbers: range) -> tuple[int, slice]:
        """Return the first row of some slices, and which of the rows that are read are theirs."""
        start = self._share.new_rows_of(numbers[0]).start * self._own.per_event
        stop = self._share.new_rows_of(numbers[-1]).stop * self._own.per_event
        first, last = torch.searchsorted(self._read, torch.tensor([start, stop])).tolist()
        return start, slice(first, last)

    def _widths(self) -> list[int]:
        """Return the bytes of a row of each column."""
        return [prod(column.shape[1:]) * column.element_size() for column in self._own.columns]

    def arrive(self, parts: Sequence[tuple[range, Tensor]]) -> None:
        """Take what everyone has sent, in the order of slices, with which slices it is of."""
        arrived = torch.cat([part for _, part in parts])
        pieces = torch.split(arrived, self._widths(), dim=1) if self._own.columns else ()
        columns = tuple(map(self._column, self._own.columns, pieces))
        self._whole = Messages(columns, self._own.per_event, self._own.last_only)

    def _column(self, like: Tensor, piece: Tensor) -> Tensor:
        """Return a column of all rows of which those that are read have come."""
        num_rows = self._own.per_event * self._share.num_new
        rows = piece.contiguous().view(like.dtype).view(len(piece), *like.shape[1:])
        if len(rows) == num_rows:
            return rows
        column = like.new_empty(num_rows, *like.shape[1:])
        return column.index_copy_(0, self._read.to(like.device), rows)

    def whole(self) -> Messages:
        """Return the messages of all new events, in order, once they have arrived."""
        assert self._whole is not None, "messages are stored before they were sent"
        return self._whole


def _bytes_of(tensor: Tensor) -> Tensor:
    """Return a tensor as uint8 `[n]`."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
