"""Row accounting: every row that was read is an event, rejected, a duplicate, or still held."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from tgflow.streams.errors import MAX_MESSAGE
from tgflow.streams.ingest.admission import Admitted
from tgflow.streams.ingest.ordering import per_partition
from tgflow.streams.rows.row_batch import BadRow, Int64s, RowBatch
from tgflow.text import printable

NUM_EXAMPLES = 3

Counts = Mapping[str, Mapping[str, Any]]
"""By partition (as text, as JSON has it): the rows `read`, `accepted` as events and dropped as
`duplicate`; how often its watermark was `forced` on; `refused`, by code: the count of rows, the
place of the first and the last, three examples; `other` things met, such as tombstones, by name;
and `gaps` that the source skipped, `[begin, end)` in its own numbers."""


class Unbalanced(RuntimeError):
    """Rows that were read and are not accounted for, or the other way round."""


class RowAccounting:
    """Counts of all rows; `read = accepted + late + malformed + duplicate + buffered`."""

    def __init__(self) -> None:
        self.counts: defaultdict[str, dict[str, Any]] = defaultdict(_none)
        self._changed: set[str] = set()

    def enter(self, polled: RowBatch, admitted: Admitted) -> None:
        """Account for rows that were polled."""
        counts = self._changing(polled.partition)
        counts["read"] += polled.num_rows
        counts["duplicate"] += admitted.num_duplicates
        counts["forced"] += admitted.forced
        counts["other"] = dict(Counter(counts["other"]) + Counter(polled.counts))
        counts["gaps"] = [*counts["gaps"], *map(list, polled.gaps)]
        for row in admitted.rejected:
            counts["refused"] |= {row.code: _with_one_more(counts["refused"].get(row.code), row)}

    def accept(self, rank: Int64s) -> None:
        """Account for events handed on, by their `ranks`."""
        for partition, num_rows, _ in per_partition(rank):
            self._changing(partition)["accepted"] += num_rows

    def changes(self) -> dict[str, Any]:
        """Return the counts of the partitions that have changed since the last call."""
        changed = {
            p: self.counts[p] | {"refused": {**self.counts[p]["refused"]}} for p in self._changed
        }
        self._changed.clear()
        return changed

    def restore(self, counts: Counts) -> None:
        """Continue from earlier counts."""
        for partition, entry in counts.items():
            self.counts[partition] = {**entry, "refused": {**entry["refused"]}}

    def _changing(self, partition: int) -> dict[str, Any]:
        self._changed.add(str(partition))
        return self.counts[str(partition)]


def _none() -> dict[str, Any]:
    numbers = dict.fromkeys(("read", "accepted", "duplicate", "forced"), 0)
    return {**numbers, "refused": {}, "other": {}, "gaps": []}


def _with_one_more(seen: Mapping[str, Any] | None, row: BadRow) -> dict[str, Any]:
    """Return what is noted of the rows of one code, with another row; all text is escaped."""
    place = {
        key: printable(v, MAX_MESSAGE) if isinstance(v, str) else v
        for key, v in row.origin.place.items()
    }
    seen = seen or {"count": 0, "first": place, "examples": []}
    examples = seen["examples"]
    if len(examples) < NUM_EXAMPLES:
        examples = [*examples, printable(row.text, MAX_MESSAGE)]
    count = seen["count"] + 1
    return {"count": count, "first": seen["first"], "last": place, "examples": examples}


def sums(counts: Counts, num_buffered: int) -> dict[str, Any]:
    """Return the sums over the partitions, and `refused`, the rows of each code, most first."""
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
    """Make sure that every row read is accounted for."""
    found = sums(counts, num_buffered)
    names = ("accepted", "late", "malformed", "duplicate", "buffered")
    if found["read"] != (total := sum(found[name] for name in names)):
        parts = " + ".join(f"{found[name]} {name}" for name in names)
        raise Unbalanced(f"{found['read']} rows were read, but {parts} = {total}")
