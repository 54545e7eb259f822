"""The scores that one entrant gave to the events, in memory and in checkpoints."""

from __future__ import annotations

import torch
from torch import Tensor

from tgflow.checkpoint import Checkpoint, Component, UntrustedCheckpoint
from tgflow.checkpoint.sections import pieces_of, put_pieces
from tgflow.checkpoint.typed import read_as, read_natural
from tgflow.train.stepper import MicroBatch

PIECE = 1 << 18
"""Events of a segment that later checkpoints need not write again."""
COLUMNS = ("reciprocal_rank", "positive", "negative")
LABEL = "label"
"""Fourth column with a task: see `EventLabels.judged`; NaN: not predicted."""


class ScoreLog(Component):
    """Reciprocal rank, positive score and first negative's score of each event from `start` on.

    With `labels`, also the values by which the predictions of labels are judged.
    """

    name = "scores"

    def __init__(self, start: int, *, labels: bool = False) -> None:
        self._start = start
        self._rows = torch.empty(0, len(COLUMNS) + labels)
        self._size = 0

    @property
    def rows(self) -> Tensor:
        """float32 or, of models that score so, float64 `[N, 3]`, with labels `[N, 4]`.

        See `COLUMNS` and `LABEL`; NaN: not scored.
        """
        return self._rows[: self._size]

    def add(
        self,
        of: MicroBatch,
        positive: Tensor,
        negative: Tensor,
        rank: Tensor,
        label: Tensor | None = None,
    ) -> None:
        """Add the scores of a micro-batch."""
        begin, end = of.start - self._start, of.stop - self._start
        num = end - begin
        positive, negative = positive[:num], negative[:num]
        self._reserve(end, positive.dtype)
        rows = self._rows[begin:end]
        rows[:, 0] = 1 / rank[:num]
        rows[:, 1], rows[:, 2] = positive, negative[:, 0]
        if label is not None:
            rows[:, 3] = label
        self._size = end

    def take_over(self, other: ScoreLog) -> None:
        """Become a copy of another log."""
        self._start, self._rows, self._size = other._start, other.rows.clone(), other._size

    def save(self, writer: Checkpoint) -> None:
        """Save the rows as views, which are never modified."""
        writer.note(self.name, {"start": self._start, "size": self._size, "piece": PIECE})
        rows = self._rows
        put_pieces(writer, self.name, PIECE, self._size, lambda a, b: {"rows": rows[a:b]})

    def load(self, reader: Checkpoint) -> None:
        """Restore the rows that were saved."""
        noted = read_as(dict[str, int], reader.meta.get(self.name), self.name)
        start, size, piece = (read_natural(noted, key) for key in ("start", "size", "piece"))
        found = [rows["rows"] for rows in pieces_of(reader, self.name, max(piece, 1), size)]
        self._rows, num = torch.cat(found), sum(map(len, found))
        if num != size:
            raise UntrustedCheckpoint(f"{self.name}.size is {size}, but there are {num} rows")
        self._start, self._size = start, size

    def _reserve(self, size: int, dtype: torch.dtype) -> None:
        """Make room for `size` rows; saved ones are not modified."""
        kind = torch.promote_types(self._rows.dtype, dtype)
        if size <= len(self._rows) and kind == self._rows.dtype:
            return
        shape = max(size, 2 * len(self._rows)), self._rows.shape[1]
        grown = torch.full(shape, torch.nan, dtype=kind)
        grown[: self._size] = self.rows
        self._rows = grown
