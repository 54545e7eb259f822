"""The circuit breaker: a high share of bad rows means a wrong schema, not bad data."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tgflow.streams.errors import MAX_MESSAGE, TooManyBadRecords
from tgflow.streams.rows.row_batch import BadRow
from tgflow.text import printable

WINDOW = 10_000
FIRST = 1_000


@dataclass(slots=True)
class _Partition:
    rows: int = 0
    good: int = 0
    bad: deque[int] = field(default_factory=deque)
    """Numbers of the bad ones among the last `WINDOW` rows."""


class CircuitBreaker:
    """Stops a run whose rows are bad too often.

    It breaks where more than `max_bad_ratio` x 10,000 of the last 10,000 rows of a partition are
    bad, or the first 1,000 all are; and at the end of a partition if more than `max_bad_ratio` of
    all its rows were. That is judged row by row, so how many rows come at a time does not matter.

    Args:
        name: The source's, for messages.
        max_bad_ratio: Share of bad rows to put up with, 0 to 1; 0 allows none.

    Raises:
        ValueError: If `max_bad_ratio` is not in [0, 1].
    """

    def __init__(self, name: str, max_bad_ratio: float = 0.05) -> None:
        if not 0 <= max_bad_ratio <= 1:
            raise ValueError(f"max_bad_ratio must be in [0, 1], got {max_bad_ratio}")
        self._name = name
        self._max_bad_ratio = max_bad_ratio
        self._limit = f", more than max_bad_ratio={max_bad_ratio:g}"
        self._partitions: dict[int, _Partition] = {}

    def see(self, partition: int, num_rows: int, bad: Sequence[BadRow]) -> None:
        """Count the next rows of a partition, `bad` by increasing index among them."""
        seen = self._partitions.setdefault(partition, _Partition())
        for row in bad:
            number = seen.rows + row.index
            while seen.bad and seen.bad[0] <= number - WINDOW:
                seen.bad.popleft()
            seen.bad.append(number)
            if not self.allows(len(seen.bad), WINDOW):
                rows = f"the last {min(number + 1, WINDOW):,} rows are bad"
                raise self._broken(f"{len(seen.bad):,} of {rows}{self._limit}", bad)
            if len(seen.bad) == number + 1 == FIRST:
                raise self._broken(f"the first {FIRST:,} rows are all bad", bad)
        seen.rows += num_rows
        seen.good += num_rows - len(bad)

    def end(self, partition: int) -> None:
        """Note that a partition has ended."""
        seen = self._partitions.get(partition, _Partition())
        if seen.rows and not seen.good:
            raise self._broken(f"{seen.rows:,} of all rows are bad{self._limit}")
        if not self.allows(num_bad := seen.rows - seen.good, seen.rows):
            raise self._broken(f"{num_bad:,} of all {seen.rows:,} rows are bad{self._limit}")

    def allows(self, num_bad: int, num_rows: int) -> bool:
        """Return whether `num_bad` of `num_rows` rows are few enough."""
        return num_bad <= self._max_bad_ratio * num_rows + 1e-9

    def to_json(self) -> dict[str, Any]:
        """Return its state as JSON can hold it."""
        return {
            str(partition): {"rows": seen.rows, "good": seen.good, "bad": list(seen.bad)}
            for partition, seen in self._partitions.items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `to_json` gave."""
        self._partitions = {
            int(partition): _Partition(seen["rows"], seen["good"], deque(seen["bad"]))
            for partition, seen in state.items()
        }

    def _broken(self, text: str, bad: Sequence[BadRow] = ()) -> TooManyBadRecords:
        if bad:
            code, _ = Counter(row.code for row in bad).most_common(1)[0]
            example = printable(next(row.text for row in bad if row.code == code), MAX_MESSAGE)
            text += f", most of them lately by {code!r} (as: {example})"
        way_out = "is the schema right? the dead letters hold the rows; else raise max_bad_ratio"
        return TooManyBadRecords(self._name, "schema", f"{text}; {way_out}")
