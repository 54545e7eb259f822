"""In-memory source of partitions with seeded poll sizes, for ordering tests."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tgflow.graph.ids import NodeIds
from tgflow.streams.errors import RowFault
from tgflow.streams.rows.row_batch import (
    EventColumns,
    Int64s,
    Origin,
    Position,
    RowBatch,
)
from tgflow.streams.rows.schema import IdKind

POLL_SIZES = (1, 2, 7, 50, 500)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a partition, good or bad."""

    src: int | str
    dst: int | str
    t: int
    x: Sequence[float] = ()
    label: int | None = None
    event_id: int | None = None
    bad: str | None = None


class ListSource:
    """Partitions held in memory. Which of them a poll serves, and how far, is drawn by `seed`.

    Partitions in `joins` appear after so many calls of `look_for_partitions`; `silent` ones never
    end, and return only so many rows.
    """

    def __init__(
        self,
        partitions: Mapping[int, Sequence[Row]],
        *,
        seed: int = 0,
        poll_sizes: Sequence[int] = POLL_SIZES,
        joins: Mapping[int, int] | None = None,
        silent: Mapping[int, int] | None = None,
        bipartite: bool = False,
    ) -> None:
        self._columns = {p: _Partition(p, rows) for p, rows in partitions.items()}
        rows = [row for part in partitions.values() for row in part]
        self.name = "list"
        self.unit = "s"
        self.x_dim = len(rows[0].x) if rows else 0
        self.id_kind: IdKind = "string" if rows and isinstance(rows[0].src, str) else "int"
        self.ids = NodeIds(bipartite)
        self.num_events: int | None = len(rows)
        self._random = random.Random(seed)
        self._poll_sizes = poll_sizes
        self._joins = dict(joins or {})
        self.silent = dict(silent or {})
        """Rows returned by endless partitions; may be changed at any time."""
        self._next: dict[int, int] = {}
        self.polled: list[frozenset[int]] = []
        """Partitions requested by each poll."""
        self.is_closed = False

    def start(self, positions: Mapping[int, Position]) -> None:
        there = {p: 0 for p in self._columns if not self._joins.get(p)} | dict.fromkeys(
            positions, 0
        )
        self._next = there | {p: int(at["row"] or 0) for p, at in positions.items()}

    def partitions(self) -> Sequence[int]:
        return sorted(self._next)

    def look_for_partitions(self) -> Sequence[int]:
        self._joins = {p: calls - 1 for p, calls in self._joins.items()}
        new = [p for p, calls in self._joins.items() if calls <= 0 and p not in self._next]
        self._next |= dict.fromkeys(new, 0)
        return new

    def poll(self, wanted: Set[int], timeout: float) -> list[RowBatch]:
        self.polled.append(frozenset(wanted))
        ready = [p for p in sorted(wanted) if self._next[p] < self._stop(p)]
        served = self._random.sample(ready, self._random.randint(1, len(ready))) if ready else []
        return [self._take(p, self._random.choice(self._poll_sizes)) for p in served]

    def ended(self) -> Set[int]:
        here = {p for p, row in self._next.items() if row >= len(self._columns[p])}
        return here - self.silent.keys()

    def lag(self) -> Mapping[int, int]:
        return {p: self._stop(p) - row for p, row in self._next.items()}

    def progress(self) -> float:
        total = sum(map(len, self._columns.values()))
        return sum(self._next.values()) / total if total else 1.0

    def counters(self) -> Mapping[str, float]:
        return {"polls": len(self.polled)}

    def committed(self, positions: Mapping[int, Position]) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True

    def _stop(self, partition: int) -> int:
        return self.silent.get(partition, len(self._columns[partition]))

    def _take(self, partition: int, size: int) -> RowBatch:
        start = self._next[partition]
        stop = self._next[partition] = min(start + size, self._stop(partition))
        return self._columns[partition].arrivals(start, stop)


class _Partition:
    """Rows as columns that can be sliced."""

    def __init__(self, number: int, rows: Sequence[Row]) -> None:
        good = [i for i, row in enumerate(rows) if row.bad is None]
        events = [rows[i] for i in good]
        kind = pa.string() if events and isinstance(events[0].src, str) else pa.int64()
        self._number = number
        self._rows = rows
        self._good = np.array(good, np.int64)
        self._events = EventColumns(
            pa.array([row.src for row in events], kind),
            pa.array([row.dst for row in events], kind),
            np.array([row.t for row in events], np.int64),
            _ints([row.label for row in events]),
            np.array([row.x for row in events], np.float32) if events and events[0].x else None,
            _texts([row.event_id for row in events]),
            relation=_ints([row.label for row in events]),
            event_id_hash=_ints([row.event_id for row in events]),
        )

    def __len__(self) -> int:
        return len(self._rows)

    def arrivals(self, start: int, stop: int) -> RowBatch:
        first, last = np.searchsorted(self._good, (start, stop)).tolist()
        good = self._good[first:last] - start
        return RowBatch(
            events=self._events.take(slice(first, last)),
            index=None if len(good) == stop - start else good,
            faults=[self._fault(start, row) for row in range(start, stop) if self._rows[row].bad],
            num_rows=stop - start,
            locate=lambda row: self._origin(start + row),
            position={"row": stop},
            partition=self._number,
        )

    def _fault(self, start: int, row: int) -> RowFault:
        return RowFault(row - start, str(self._rows[row].bad), "made bad")

    def _origin(self, row: int) -> Origin:
        return Origin({"partition": self._number, "row": row}, repr(self._rows[row]).encode())


def _texts(values: list[int | None]) -> pa.Array | None:
    if not values or values[0] is None:
        return None
    return pa.array([f"id-{value}" for value in values])


def _ints(values: list[int | None]) -> Int64s | None:
    return np.array(values, np.int64) if values and values[0] is not None else None
