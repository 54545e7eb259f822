"""The pairs that a batch scores, and features of their exact history."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tgflow.base.choices import PairGroup
from tgflow.graph.batch import Batch
from tgflow.nn.groups import numbers_of
from tgflow.nn.model import Scores


class Pairs(NamedTuple):
    """Rows of the top frontier, two for each pair."""

    src_row: Tensor
    """int64 `[P]`."""
    dst_row: Tensor
    """int64 `[P]`."""
    kept: Tensor | None = None
    """int64 `[P]`: where only some slots hold negatives, the numbers of these pairs among all."""

    @classmethod
    def of(cls, batch: Batch) -> Pairs:
        """Return the pairs of a batch: its events, then event 0's negatives, ...

        On the CPU slots without a negative are left out, see `HostEvents.negative_mask`; on a GPU
        all `B * (1 + m)` pairs are returned, so that their number does not vary.
        """
        kept, mask = None, batch.negative_mask
        if mask is not None and batch.src_row.is_cpu:
            is_kept = torch.cat([torch.ones(len(mask), dtype=torch.bool), mask.flatten()])
            kept = is_kept.nonzero().squeeze(1)
        rows = batch.src_row, batch.negative_src_row, batch.dst_row, batch.negative_dst_row
        src_row, dst_row = torch.cat([each.flatten() for each in rows]).view(2, -1)
        if kept is None:
            return cls(src_row, dst_row)
        return cls(src_row[kept], dst_row[kept], kept)

    def column(self, values: Tensor) -> Tensor:
        """Return values of events and negatives, `[B, 1 + m, ...]`, in the order of pairs."""
        every = torch.cat([values[:, 0], values[:, 1:].flatten(0, 1)])
        return every if self.kept is None else every[self.kept]

    @property
    def num_pairs(self) -> int:
        return len(self.src_row)

    def distinct_sources(self, num_rows: int) -> tuple[Tensor, Tensor]:
        """Return the distinct rows of sources, and the index of each pair's, int64 `[P]`.

        On a GPU these are all rows of the frontier, to avoid synchronization.

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
        """Return `[P]` from `score`, called per chunk for `[p]`, so that memory is bounded.

        Chunking changes at most the last bits, where matrix products depend on their heights. While
        gradients are recorded, the saved tensors of all chunks are kept.
        """
        return torch.cat([score(chunk) for chunk in self.chunks(max_pairs)])

    def scores(self, logits: Tensor, batch: Batch) -> Scores:
        """Return the logits `[P]` of the pairs of a batch as its `Scores`.

        Slots without a negative have the score of their event.
        """
        num_events, m = batch.negative_src_row.shape
        positive, negative = torch.split(logits, [num_events, len(logits) - num_events])
        if self.kept is not None:
            every = positive.repeat_interleave(m)
            negative = every.index_copy(0, self.kept[num_events:] - num_events, negative)
        return Scores(positive, negative.view(num_events, m))


class PairFeatures(nn.Module):
    """Features of the past events of each scored pair (u, v), without parameters.

    A model that reads it lists its `counts` first of its own.

    Args:
        groups: Groups of numbers to read, see `tgflow.nn.groups`.

    Example:
        `LinkDecoder(dim, pair_features=("recency",))`
    """

    def __init__(self, groups: Sequence[PairGroup]) -> None:
        super().__init__()
        self.groups = tuple(groups)
        self.counts = numbers_of(self.groups)
        """The columns, required from the plan."""

    @property
    def dim(self) -> int:
        """Columns."""
        return len(self.counts)

    def forward(self, batch: Batch, pairs: Pairs) -> Tensor:
        """Return the features of the pairs of a batch.

        Returns:
            float32 `[P, dim]`; does not synchronize.

        Raises:
            ValueError: If the batch has no such counts.
        """
        counts = batch.counts
        num = 0 if counts is None else counts.shape[-1]
        if counts is None or num < self.dim:
            raise ValueError(
                f"pair features need {self.dim} counts of the past, the batch has {num}: make its "
                "plan with counts=model.counts, and list PairFeatures.counts first in the model's "
                "counts"
            )
        return pairs.column(counts[..., : self.dim].float())
