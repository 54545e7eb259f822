"""Event ids seen lately, to find events that come twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tgflow.streams.rows.checks import Int64s

SLACK = 1024


class Seen(NamedTuple):
    """Ids, and the numbers of the rows that had them first, both int64; increasing by number."""

    seq: Int64s
    ids: Int64s


@dataclass(frozen=True, slots=True)
class DedupWindow:
    """The ids remembered at one moment; nothing in it ever changes."""

    pieces: list[Seen]
    stop: int
    first_seq: int

    def seen(self) -> Seen:
        """Return the ids, by the number of their row."""
        pieces = self.pieces[: self.stop]
        empty = np.empty(0, np.int64)
        seq = np.concatenate([empty, *(piece.seq for piece in pieces)])
        ids = np.concatenate([empty, *(piece.ids for piece in pieces)])
        recent = np.flatnonzero(seq >= self.first_seq)
        recent = recent[np.argsort(seq[recent], kind="stable")]
        return Seen(seq[recent], ids[recent])


class RecentIds:
    """The event ids of the last rows of one partition.

    A row is a duplicate if one of the `window` rows before it was the first with its id. Duplicates
    themselves are not remembered: a row that keeps coming is let through once in a window.

    Args:
        window: How many rows back to remember.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._seq_of: dict[int, int] = {}
        self._pieces: list[Seen] = []  # only ever appended to, as windows share it
        self._num_rows = 0
        self._first_seq = -window

    def duplicates(self, seen: Seen) -> npt.NDArray[np.bool_]:
        """Return which of the next rows are duplicates, and remember the others."""
        is_duplicate = np.zeros(len(seen.seq), bool)
        for row, (seq, key) in enumerate(zip(seen.seq.tolist(), seen.ids.tolist(), strict=True)):
            before = self._seq_of.get(key)
            if before is not None and seq - before <= self._window:
                is_duplicate[row] = True
            else:
                self._seq_of[key] = seq
        self._keep(Seen(seen.seq[~is_duplicate], seen.ids[~is_duplicate]))
        if len(seen.seq):
            self._forget(int(seen.seq[-1]) + 1)
        return is_duplicate

    def remember(self, seen: Seen) -> None:
        """Take in rows that are known to be no duplicates, in any order."""
        order = np.argsort(seen.seq)
        seen = Seen(seen.seq[order], seen.ids[order])
        for seq, key in zip(seen.seq.tolist(), seen.ids.tolist(), strict=True):
            self._seq_of[key] = max(seq, self._seq_of.get(key, seq))
        self._keep(seen)
        if len(seen.seq):
            self._forget(int(seen.seq[-1]) + 1)

    def window(self) -> DedupWindow:
        """Return what is remembered now."""
        return DedupWindow(self._pieces, len(self._pieces), self._first_seq)

    def _keep(self, seen: Seen) -> None:
        if len(seen.seq):
            self._pieces.append(seen)
            self._num_rows += len(seen.seq)

    def _forget(self, next_seq: int) -> None:
        """Forget rows that no row from `next_seq` on can be a duplicate of."""
        self._first_seq = max(self._first_seq, next_seq - self._window)
        if self._num_rows <= 2 * self._window + SLACK:
            return
        recent = self.window().seen()
        self._pieces, self._num_rows = [recent], len(recent.seq)
        self._seq_of = dict(zip(recent.ids.tolist(), recent.seq.tolist(), strict=True))
