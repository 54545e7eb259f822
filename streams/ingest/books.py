"""Keeps account of rows: counts, dead letters, and whether too many of them are bad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tgflow.streams.ingest.admission import Admitted
from tgflow.streams.ingest.breaker import CircuitBreaker
from tgflow.streams.ingest.config import Late
from tgflow.streams.ingest.counts import Counts
from tgflow.streams.ingest.dead_letters import DeadLetter, DeadLetterSink, Length
from tgflow.streams.ingest.reorder import per_partition
from tgflow.streams.rows.checks import Int64s
from tgflow.streams.rows.row_batch import BadRow, PolledRows

NO_LETTERS: Length = {"segment": 0, "byte": 0}


class Books:
    """What became of the rows of one source.

    Args:
        name: The source's, for dead letters.
        counts: What is counted by.
        breaker: Hears of bad rows, if there is one.
        letters: Takes refused rows, if there is a place for them.
        late: What becomes of late rows.
    """

    def __init__(
        self,
        name: str,
        counts: Counts,
        breaker: CircuitBreaker | None,
        letters: DeadLetterSink | None,
        late: Late,
    ) -> None:
        self.counts = counts
        self._name = name
        self._breaker = breaker
        self._letters = letters
        self._late = late
        self._touched: set[int] = set()

    @property
    def length(self) -> Length:
        """How many letters have been written."""
        return NO_LETTERS if self._letters is None else self._letters.length

    def enter(self, taken: Sequence[tuple[PolledRows, Admitted]]) -> None:
        """Account for rows that arrived; letters are on the disk when this returns.

        Raises:
            TooManyBadRecords: If the breaker breaks; the letters are there by then.
            OSError: If letters cannot be written.
        """
        self._write([row for _, admitted in taken for row in self._refused(admitted)])
        for arrivals, admitted in taken:
            counts = self.counts[arrivals.partition]
            counts.read += arrivals.num_rows
            counts.duplicate += admitted.num_duplicates
            counts.forced += admitted.forced
            counts.other.update(arrivals.counts)
            counts.gaps.extend(arrivals.gaps)
            for row in (*admitted.bad, *admitted.late):
                counts.refuse(row.code, row.origin.place, row.text)
            self._touched.add(arrivals.partition)
            if self._breaker is not None:
                self._breaker.see(arrivals.partition, arrivals.num_rows, admitted.bad)

    def accept(self, rank: Int64s) -> None:
        """Account for events handed on."""
        for partition, num_rows, _ in per_partition(rank):
            self.counts[partition].accepted += num_rows
            self._touched.add(partition)

    def end(self) -> None:
        """Hear that all partitions have ended.

        Raises:
            TooManyBadRecords: If all rows of all of them were bad.
        """
        if self._breaker is None or self.counts.total("malformed") < self.counts.total("read"):
            return
        for partition in self.counts.partitions:
            self._breaker.end(partition)

    def changes(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return counts and breaker of the partitions that have changed since the last call."""
        touched = Counts()
        touched.partitions = {p: self.counts[p] for p in self._touched}
        seen = {} if self._breaker is None else self._breaker.to_json()
        judged = {str(p): seen[str(p)] for p in self._touched if str(p) in seen}
        self._touched.clear()
        return touched.to_json(), judged

    def restore(
        self, counts: Mapping[str, Any], breaker: Mapping[str, Any], letters: Length | None
    ) -> None:
        """Go on from what was known at some moment, and take back letters written after it.

        Raises:
            OSError: If letters are missing, or cannot be taken back.
        """
        self.counts.partitions = Counts.from_json(counts).partitions
        if self._breaker is not None:
            self._breaker.restore(breaker)
        if self._letters is not None:
            self._letters.truncate(NO_LETTERS if letters is None else letters)

    def _refused(self, admitted: Admitted) -> list[BadRow]:
        late = admitted.late if self._late == "dead_letter" else []
        return sorted((*admitted.bad, *late), key=lambda row: row.index)

    def _write(self, rows: Sequence[BadRow]) -> None:
        if rows and self._letters is not None:
            self._letters.write(DeadLetter.of(self._name, row) for row in rows)
            self._letters.sync()
