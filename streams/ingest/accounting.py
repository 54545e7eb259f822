"""Row accounting: every row that was read is an event, rejected, a duplicate, or still held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tgflow.streams.errors import MAX_MESSAGE
from tgflow.streams.ingest.admission import Admitted
from tgflow.streams.ingest.reorder import per_partition
from tgflow.streams.rows.checks import Int64s
from tgflow.streams.rows.row_batch import Location, PolledRows
from tgflow.text import printable

NUM_EXAMPLES = 3


class Unbalanced(RuntimeError):
    """Rows that were read and that nobody can account for, or the other way round."""


@dataclass(slots=True)
class RejectedRows:
    """The rows of one code in one partition.

    Args:
        count: How many.
        first: Where the first stood.
        last: Where the last stood.
        examples: What was wrong with the first three, escaped.
    """

    count: int = 0
    first: dict[str, int | str] = field(default_factory=dict)
    last: dict[str, int | str] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)

    def add(self, place: Location, text: str) -> None:
        """Count one more."""
        safe = {
            key: printable(v, MAX_MESSAGE) if isinstance(v, str) else v for key, v in place.items()
        }
        self.count += 1
        self.first = self.first or safe
        self.last = safe
        if len(self.examples) < NUM_EXAMPLES:
            self.examples.append(printable(text, MAX_MESSAGE))


@dataclass(slots=True)
class PartitionCounts:
    """What became of the rows of one partition.

    Args:
        read: Rows read.
        accepted: Rows handed on as events.
        duplicate: Rows dropped since they had come before.
        forced: How often the watermark was forced on since the buffer was full.
        refused: By code, the rows that are dead letters (or were dropped for being late).
        other: What was met that is no row, such as tombstones, by name.
        gaps: What the source skipped, `[begin, end)` in its own numbers.
    """

    read: int = 0
    accepted: int = 0
    duplicate: int = 0
    forced: int = 0
    refused: dict[str, RejectedRows] = field(default_factory=dict)
    other: Counter[str] = field(default_factory=Counter)
    gaps: list[tuple[int, int]] = field(default_factory=list)

    @property
    def late(self) -> int:
        """Rows that came too late."""
        return self.refused["late"].count if "late" in self.refused else 0

    @property
    def malformed(self) -> int:
        """Rows that are no events."""
        return sum(seen.count for seen in self.refused.values()) - self.late

    def reject(self, code: str, place: Location, text: str) -> None:
        """Count a row that is no event, or one that came too `late`."""
        self.refused.setdefault(code, RejectedRows()).add(place, text)


class RowAccounting:
    """What became of all rows: `read = accepted + late + malformed + duplicate + buffered`.

    `accounting[partition]` is what to count by; a new partition starts at 0.
    """

    def __init__(self) -> None:
        self.partitions: dict[int, PartitionCounts] = {}
        self._changed: set[int] = set()

    def __getitem__(self, partition: int) -> PartitionCounts:
        return self.partitions.setdefault(partition, PartitionCounts())

    def enter(self, polled: PolledRows, admitted: Admitted) -> None:
        """Account for rows that were polled."""
        counts = self[polled.partition]
        counts.read += polled.rows.num_rows
        counts.duplicate += admitted.num_duplicates
        counts.forced += admitted.forced
        counts.other.update(polled.counts)
        counts.gaps.extend(polled.gaps)
        for row in (*admitted.bad, *admitted.late):
            counts.reject(row.code, row.origin.place, row.text)
        self._changed.add(polled.partition)

    def accept(self, rank: Int64s) -> None:
        """Account for events handed on, by their `ranks`."""
        for partition, num_rows, _ in per_partition(rank):
            self[partition].accepted += num_rows
            self._changed.add(partition)

    def changes(self) -> dict[str, Any]:
        """Return the counts of the partitions that have changed since the last call, as JSON."""
        changed = {str(p): _to_json(self[p]) for p in self._changed}
        self._changed.clear()
        return changed

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `to_json` gave."""
        self.partitions = {int(number): _from_json(entry) for number, entry in state.items()}

    def total(self, name: str) -> int:
        """Return the sum over the partitions: read, accepted, late, malformed, duplicate, forced.

        Any other name is looked for among what was met that is no row.
        """
        if hasattr(PartitionCounts, name):
            return sum(getattr(counts, name) for counts in self.partitions.values())
        return sum(counts.other[name] for counts in self.partitions.values())

    def by_code(self) -> dict[str, int]:
        """Return how many rows were refused, by code, the most frequent first."""
        sums: Counter[str] = Counter()
        for counts in self.partitions.values():
            sums.update({code: seen.count for code, seen in counts.refused.items()})
        return dict(sums.most_common())

    def check(self, num_buffered: int) -> None:
        """Make sure that every row read is accounted for.

        Raises:
            Unbalanced: If one is not; that is an error of tgflow's.
        """
        names = ("accepted", "late", "malformed", "duplicate")
        parts = {name: self.total(name) for name in names} | {"buffered": num_buffered}
        if (read := self.total("read")) != sum(parts.values()):
            sums = " + ".join(f"{count} {name}" for name, count in parts.items())
            raise Unbalanced(f"{read} rows were read, but {sums} = {sum(parts.values())}")

    def report(self, num_buffered: int = 0) -> dict[str, Any]:
        """Return all counts for a report: the sums, and each partition as in `to_json`."""
        names = ("read", "accepted", "late", "malformed", "duplicate", "forced")
        sums = {name: self.total(name) for name in names} | {"buffered": num_buffered}
        return sums | {"refused": self.by_code(), "partitions": self.to_json()}

    def table(self) -> list[tuple[str, str, str, str, str, str]]:
        """Return lines for people: code, partition, rows, first place, last place, an example."""
        return [
            (code, str(number), f"{seen.count:,}", _at(seen.first), _at(seen.last), example)
            for number, counts in sorted(self.partitions.items())
            for code, seen in sorted(counts.refused.items(), key=lambda item: -item[1].count)
            for example in seen.examples[:1]
        ]

    def to_json(self) -> dict[str, Any]:
        """Return all counts as JSON can hold them."""
        return {str(number): _to_json(counts) for number, counts in self.partitions.items()}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> RowAccounting:
        """Return the accounting that gave `to_json()`."""
        accounting = cls()
        accounting.restore(state)
        return accounting


def _at(place: Location) -> str:
    return ", ".join(f"{name} {value}" for name, value in place.items())


def _to_json(counts: PartitionCounts) -> dict[str, Any]:
    refused = {
        code: {
            "count": seen.count,
            "first": seen.first,
            "last": seen.last,
            "examples": list(seen.examples),
        }
        for code, seen in counts.refused.items()
    }
    return {
        "read": counts.read,
        "accepted": counts.accepted,
        "duplicate": counts.duplicate,
        "forced": counts.forced,
        "refused": refused,
        "other": dict(counts.other),
        "gaps": [list(gap) for gap in counts.gaps],
    }


def _from_json(entry: Mapping[str, Any]) -> PartitionCounts:
    refused = {code: RejectedRows(**seen) for code, seen in entry["refused"].items()}
    for seen in refused.values():
        seen.examples = list(seen.examples)
    gaps = [(begin, end) for begin, end in entry["gaps"]]
    numbers = {name: entry[name] for name in ("read", "accepted", "duplicate", "forced")}
    return PartitionCounts(**numbers, refused=refused, other=Counter(entry["other"]), gaps=gaps)
