"""The pairs that a batch scores, side by side, for models that look at two nodes together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tgflow.batch import Batch
from tgflow.model import Scores


class Pairs(NamedTuple):
    """Rows of the top frontier, two for each pair."""

    src_row: Tensor
    """int64 `[P]`."""
    dst_row: Tensor
    """int64 `[P]`."""

    @classmethod
    def of(cls, batch: Batch) -> Pairs:
        """Return all `B * (1 + m)` pairs of a batch: its events, then event 0's negatives, ..."""
        return cls(
            torch.cat([batch.src_row, batch.negative_src_row.flatten()]),
            torch.cat([batch.dst_row, batch.negative_dst_row.flatten()]),
        )

    @property
    def num_pairs(self) -> int:
        """How many there are, P."""
        return len(self.src_row)

    def distinct_sources(self, num_rows: int) -> tuple[Tensor, Tensor]:
        """Return the distinct rows of sources, and which of them is each pair's, int64 `[P]`.

        On a GPU, to wait for nothing, those are all rows of the frontier.

        Args:
            num_rows: Rows of the top frontier.
        """
        if self.src_row.is_cpu:
            distinct, number = torch.unique(self.src_row, return_inverse=True)
            return distinct, number
        return torch.arange(num_rows, device=self.src_row.device), self.src_row

    def chunks(self, max_pairs: int) -> Iterator[Pairs]:
        """Yield the pairs in order, at most `max_pairs` at a time; no pairs are one empty chunk.

        Raises:
            ValueError: If `max_pairs` is below 1.
        """
        if max_pairs < 1:
            raise ValueError(f"max_pairs must be at least 1, got {max_pairs}")
        for start in range(0, max(self.num_pairs, 1), max_pairs):
            part = slice(start, start + max_pairs)
            yield Pairs(self.src_row[part], self.dst_row[part])

    def logits(self, score: Callable[[Pairs], Tensor], max_pairs: int) -> Tensor:
        """Return `[P]` by `score`, which makes `[p]` of a chunk, so that memory is bounded.

        The chunks change no result, but for the last bits where products of matrices depend on
        their heights. While gradients are recorded, what `score` keeps for them is kept for all.
        """
        return torch.cat([score(chunk) for chunk in self.chunks(max_pairs)])

    def scores(self, logits: Tensor, batch: Batch) -> Scores:
        """Return the logits `[P]` of the pairs of a batch as its `Scores`."""
        num_events = len(batch.src_row)
        negative = logits[num_events:].view(batch.negative_src_row.shape)
        return Scores(logits[:num_events], negative)
