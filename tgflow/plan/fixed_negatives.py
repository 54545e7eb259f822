"""Negatives that are given for each event, as benchmarks publish them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tgflow.ids import NodeIds
from tgflow.plan.negatives import Negatives, PairHistory

_CAUSE = "are they of another version of the data set, or was it read with a limit or sorted?"


class FixedNegatives:
    """The same negatives for an event whoever asks: the event's source with given destinations.

    Events may have different numbers of them: rows are padded to the most that any event has, and
    `Negatives.mask` says which are negatives.

    Args:
        first_eid: Log position of the first event that has negatives; the others follow it.
        start: Where the negatives of each event start in `dst`, int64 `[n + 1]`, never decreasing;
            the last is where they end.
        dst: Nodes, int64 `[M]`.

    Raises:
        ValueError: If the arguments do not fit together.
    """

    def __init__(self, first_eid: int, start: Tensor, dst: Tensor) -> None:
        if not len(start) or int(start[0]) != 0 or int(start[-1]) != len(dst):
            raise ValueError(f"start must go from 0 to the {len(dst)} negatives that there are")
        counts = start.diff()
        if bool((counts < 0).any()):
            raise ValueError("start must never decrease")
        self.first_eid, self.start, self.dst = first_eid, start, dst
        self.num = max(1, int(counts.max())) if len(counts) else 1
        self._is_ragged = bool((counts != self.num).any())

    def __len__(self) -> int:
        """Return how many events have negatives."""
        return len(self.start) - 1

    @classmethod
    def load(cls, path: Path, ids: NodeIds, first_eid: int) -> FixedNegatives:
        """Return what `tgflow convert tgb` wrote to a file.

        Args:
            path: The file, NAME.val.negatives.safetensors or NAME.test.negatives.safetensors.
            ids: Of the stream, all of which has been read.
            first_eid: Log position of the first event of that part.

        Raises:
            OSError: If there is no such file.
            ValueError: If it is no such file, or names a node that the stream does not have.
        """
        try:
            with safe_open(path, framework="np") as file:
                start, dst = (_column(file, name) for name in ("start", "dst"))
        except SafetensorError as error:
            raise ValueError(f"{path} is no file of negatives: {error!s:.100}") from None
        found = ids.find(dst, "dst")
        if bool((found < 0).any()):
            unknown = int(dst[int((found < 0).nonzero()[0])])
            raise ValueError(f"{path}: node {unknown} is not in the stream; {_CAUSE}")
        return cls(first_eid, start, found)

    def draw(
        self, history: PairHistory, key: int, src: Tensor, dst: Tensor, *, start: Tensor, stop: int
    ) -> Negatives:
        """Return the negatives of the events at the positions before `stop`; nothing is drawn.

        Raises:
            ValueError: If an event has no negatives, or events are replayed.
        """
        row = torch.arange(stop - len(src), stop) - self.first_eid
        if len(start) and int(start[0]) > stop - len(src):
            raise ValueError("fixed negatives are of new events; they have none for replayed ones")
        outside = (row < 0) | (row >= len(self))
        if bool(outside.any()):
            eid = int(row[outside][0]) + self.first_eid
            last = self.first_eid + len(self)
            raise ValueError(
                f"event {eid} has no fixed negatives, which are of events {self.first_eid} to "
                f"{last - 1}; {_CAUSE}"
            )
        place = self.start[row].unsqueeze(1) + torch.arange(self.num)
        mask = place < self.start[row + 1].unsqueeze(1)
        found = self.dst[place.clamp_(max=max(0, len(self.dst) - 1))] if len(self.dst) else place
        return Negatives(
            src.unsqueeze(1).expand(-1, self.num),
            torch.where(mask, found, dst.unsqueeze(1)),
            0,
            own_sources=True,
            mask=mask if self._is_ragged else None,
        )


def _column(file: Any, name: str) -> Tensor:
    values = np.asarray(file.get_tensor(name))
    if values.dtype != np.int64 or values.ndim != 1:
        raise ValueError(f"{name} must be a list of int64, got {values.dtype} {values.shape}")
    return torch.from_numpy(values)
