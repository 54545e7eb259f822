"""Row accounting: every row read is an event, rejected, a duplicate, or still buffered."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from tgflow.base.text import printable
from tgflow.streams.errors import MAX_MESSAGE, TooManyBadRecords
from tgflow.streams.ingest.admission import Admitted
from tgflow.streams.ingest.ingest_state import Counts
from tgflow.streams.ingest.ordering import per_partition
from tgflow.streams.rows.row_batch import BadRow, Int64s, Origin, RowBatch

NUM_EXAMPLES = 3
TOLERATED = ("late", "ambiguous", "unseen", "outside")
"""Codes of rows that have the right schema."""
WINDOW = 10_000
"""Rows of a partition in the circuit breaker's window."""
FIRST = 1_000
"""Number of first rows of a partition that trip the breaker if all are bad."""


class Unbalanced(RuntimeError):
    """Raised when the rows read differ from the rows accounted for; a bug in tgflow."""


class RowAccounting:
    """Counts of all rows; `read = accepted + late + malformed + duplicate + buffered`.

    Also the circuit breaker: a high share of bad rows means a wrong schema, not bad data. It trips
    when more than `max_bad_ratio` x 10,000 of the last 10,000 rows of a partition are bad, or all
    of its first 1,000; and at the end if more than `max_bad_ratio` of all rows were bad. Rows are
    counted individually, so the poll size does not matter.

    Args:
        max_bad_ratio: Tolerated share of bad rows, 0 to 1; 0 allows none, None any.
    """

    def __init__(self, name: str, max_bad_ratio: float | None = None) -> None:
        self.counts: defaultdict[str, dict[str, Any]] = defaultdict(_none)
        self._name, self._max_bad_ratio = name, max_bad_ratio
        self._changed: set[str] = set()

    def enter(self, polled: RowBatch, admitted: Admitted) -> None:
        """Account for rows that were polled.

        Raises:
            TooManyBadRecords: If the breaker trips; its `row` is the bad row that trips it.
        """
        counts = self._changing(polled.partition)
        bad = [row for row in admitted.rejected if row.code not in TOLERATED]
        if bad and self._max_bad_ratio is not None:
            self._break(counts, bad)
        counts["read"] += polled.num_rows
        counts["duplicate"] += admitted.num_duplicates
        counts["forced"] += admitted.forced
        counts["other"] = dict(Counter(counts["other"]) + Counter(polled.counts))
        counts["gaps"] = [*counts["gaps"], *map(list, polled.gaps)]
        for row in admitted.rejected:
            place = {
                key: printable(value, MAX_MESSAGE) if isinstance(value, str) else value
                for key, value in row.origin.place.items()
            }
            seen = counts["refused"].get(row.code, {"count": 0, "first": place, "examples": []})
            examples = seen["examples"]
            if len(examples) < NUM_EXAMPLES:
                examples = [*examples, printable(row.text, MAX_MESSAGE)]
            seen = {**seen, "count": seen["count"] + 1, "last": place, "examples": examples}
            counts["refused"] = {**counts["refused"], row.code: seen}

    def accept(self, rank: Int64s) -> None:
        """Account for released events, given their `ranks`."""
        for partition, num_rows, _ in per_partition(rank):
            self._changing(partition)["accepted"] += num_rows

    def check_share(self) -> None:
        """Raise `TooManyBadRecords` if the overall share of bad rows is too high."""
        found = sums(self.counts, 0)
        num_bad, num_rows = found["malformed"], found["read"]
        if not self._allows(num_bad, num_rows):
            bad = "all" if num_bad == num_rows else f"{num_bad:,} of"
            text = f"{bad} {num_rows:,} rows are bad{self._limit}"
            raise self._broken(text, *self._most_frequent())

    def changes(self) -> dict[str, Any]:
        """Return the counts of the partitions that have changed since the last call."""
        changed = {partition: dict(self.counts[partition]) for partition in self._changed}
        self._changed.clear()
        return changed

    def restore(self, counts: Counts) -> None:
        """Continue from earlier counts."""
        self.counts.update((partition, dict(entry)) for partition, entry in counts.items())

    def _changing(self, partition: int) -> dict[str, Any]:
        self._changed.add(str(partition))
        return self.counts[str(partition)]

    def _break(self, counts: dict[str, Any], bad: Sequence[BadRow]) -> None:
        """Record the bad rows that follow the `counts` of a partition; trip if too many are bad."""
        recent, start = list(counts["recent_bad"]), 0
        for row in bad:
            number = counts["read"] + row.index
            recent.append(number)
            while recent[start] <= number - WINDOW:
                start += 1
            num_bad = len(recent) - start
            if not self._allows(num_bad, WINDOW):
                rows = f"the last {min(number + 1, WINDOW):,} rows are bad"
                raise self._broken(f"{num_bad:,} of {rows}{self._limit}", *_usual(bad), row)
            if num_bad == number + 1 == FIRST:
                raise self._broken(f"the first {FIRST:,} rows are all bad", *_usual(bad), row)
        counts["recent_bad"] = recent[start:]

    def _allows(self, num_bad: int, num_rows: int) -> bool:
        ratio = self._max_bad_ratio
        return ratio is None or num_bad <= ratio * num_rows + 1e-9

    @property
    def _limit(self) -> str:
        return f", more than max_bad_ratio={self._max_bad_ratio:g}"

    def _most_frequent(self) -> tuple[str, str]:
        """Return the most frequent fault of all rows with an example, and the example's place."""
        refused = sums(self.counts, 0)["refused"]
        code, count = next(each for each in refused.items() if each[0] != "late")
        every = (entry["refused"] for entry in self.counts.values())
        example = next(found[code] for found in every if code in found)
        place = Origin(example["first"], b"").where
        return f", {count:,} of them by {code!r} (as {place}: {example['examples'][0]})", place

    def _broken(
        self, text: str, fault: str, place: str, row: BadRow | None = None
    ) -> TooManyBadRecords:
        way_out = "is the schema right? the dead letters hold the rows; else raise max_bad_ratio"
        return TooManyBadRecords(self._name, "schema", f"{text}{fault}; {way_out}", row, place)


def _usual(bad: Sequence[BadRow]) -> tuple[str, str]:
    [(code, _)] = Counter(row.code for row in bad).most_common(1)
    example = next(row for row in bad if row.code == code)
    place = example.origin.where
    text = printable(f"{place}: {example.text}", MAX_MESSAGE)
    return f", most of them lately by {code!r} (as {text})", place


def _none() -> dict[str, Any]:
    numbers = dict.fromkeys(("read", "accepted", "duplicate", "forced"), 0)
    return {**numbers, "refused": {}, "other": {}, "gaps": [], "recent_bad": []}


def sums(counts: Counts, num_buffered: int) -> dict[str, Any]:
    """Return the sums over the partitions, and `refused`, rows by code in descending order."""
    found: dict[str, Any] = {
        name: sum(entry[name] for entry in counts.values())
        for name in ("read", "accepted", "duplicate", "forced")
    }
    codes: Counter[str] = Counter()
    for entry in counts.values():
        codes.update({code: seen["count"] for code, seen in entry["refused"].items()})
    late = codes["late"]
    found |= {"late": late, "malformed": codes.total() - late, "buffered": num_buffered}
    return found | {"refused": dict(codes.most_common())}


def check_balance(counts: Counts, num_buffered: int) -> None:
    """Raise `Unbalanced` unless every row read is accounted for."""
    found = sums(counts, num_buffered)
    names = ("accepted", "late", "malformed", "duplicate", "buffered")
    if found["read"] != (total := sum(found[name] for name in names)):
        parts = " + ".join(f"{found[name]} {name}" for name in names)
        raise Unbalanced(f"{found['read']} rows were read, but {parts} = {total}")
