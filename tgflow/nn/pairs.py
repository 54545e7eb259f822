"""The pairs that a batch scores, and features of their exact history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from tgflow.batch import Batch
from tgflow.counts import TICK, Count, Number, latest, where
from tgflow.model import Scores


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
        pairs = (batch.src_row, batch.negative_src_row), (batch.dst_row, batch.negative_dst_row)
        src_row, dst_row = (torch.cat([own, others.flatten()]) for own, others in pairs)
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
        positive, negative = logits[:num_events], logits[num_events:]
        if self.kept is not None:
            every = positive.repeat_interleave(m)
            negative = every.index_copy(0, self.kept[num_events:] - num_events, negative)
        return Scores(positive, negative.view(num_events, m))


_SECONDS = (3600.0, 86_400.0, 604_800.0)
"""An hour, a day and a week: the scales that resolve the age of a pair."""
_LOG_SCALE = 1 / 16
"""Scales the logarithm of an age in seconds, of up to 30 years, to the order of 1."""


def _features() -> Iterator[Number]:
    """Yield the columns of `PairFeatures`."""
    pair, reverse, dst = Count("pair"), Count("reverse"), Count("dst")
    for num, age in (
        (pair.num, pair.age),
        (reverse.num, reverse.age),
        (pair.num + reverse.num, latest(pair.age, reverse.age)),
        (dst.num, dst.age),
    ):
        seen, seconds = num >= 1, age.maximum(0) * TICK
        yield seen
        yield num.log1p()
        yield seconds.log1p() * _LOG_SCALE
        for scale in _SECONDS:
            yield where(seen, (-seconds / scale).exp(), 0)


class PairFeatures(nn.Module):
    """Features of the past events of each scored pair (u, v): 24 columns, zeros for never.

    Six each of events from u to v, of those from v to u, of those in either direction, and of those
    to v from anywhere: whether there are any, log(1 + number), log(1 + age of the latest) / 16, and
    exp(-age / 1 h), exp(-age / 1 d), exp(-age / 1 w); ages in seconds. An event of a node with
    itself has both directions.

    It has no parameters. A model that reads it lists `PairFeatures.counts` first of its `counts`.

    Example:
        `LinkDecoder(dim, pair_features=True)`
    """

    counts: ClassVar[tuple[Number, ...]] = tuple(_features())
    """The columns, required from the plan."""
    dim: ClassVar[int] = 24
    """Columns."""

    @staticmethod
    def recency() -> Tensor:
        """Return 24 weights that score pairs by recency, as logits, float32 `[24]`.

        6 (1 - p) + 3 (0.7 - d), where p and d are log(1 + age) / 16 of the latest event of the pair
        in either direction and of that of the destination; a term is 0 if there is none, so that
        new nodes are not penalized. The terms are 6 and 2 at an age of 1 s, and 0 at 103 days and
        20 hours.
        """
        pair, dst = [6.0, 0.0, -6.0, 0.0, 0.0, 0.0], [2.1, 0.0, -3.0, 0.0, 0.0, 0.0]
        return torch.tensor([*(0.0,) * 12, *pair, *dst])

    def forward(self, batch: Batch, pairs: Pairs) -> Tensor:
        """Return the features of the pairs of a batch.

        Returns:
            float32 `[P, 24]`; does not synchronize.

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
