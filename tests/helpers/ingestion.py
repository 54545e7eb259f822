"""Partitioned sources in memory, their reference order, and ingestion from them."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import torch

from tgflow.checkpoint.durable.log import LogPosition
from tgflow.graph.events import concat
from tgflow.graph.ids import NodeIds
from tgflow.streams.errors import RowFault
from tgflow.streams.ingest.config import AFTER_ALL, BEFORE_ALL, OrderConfig
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.ingest.ingest_state import IngestState
from tgflow.streams.rows.row_batch import EventColumns, Int64s, Origin, Position, RowBatch
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
    label_time: int | None = None


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
        self.is_out = False
        """Whether nothing arrives, and the ends are unknown."""

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
        if self.is_out:
            return []
        ready = [p for p in sorted(wanted) if self._next[p] < self._stop(p)]
        served = self._random.sample(ready, self._random.randint(1, len(ready))) if ready else []
        return [self._take(p, self._random.choice(self._poll_sizes)) for p in served]

    def ended(self) -> Set[int]:
        here = {p for p, row in self._next.items() if row >= len(self._columns[p])}
        return here - self.silent.keys()

    def lag(self) -> Mapping[int, int]:
        return {p: self._stop(p) - row for p, row in self._next.items()}

    def caught_up(self) -> Set[int]:
        return {p for p, lag in self.lag().items() if not lag and not self.is_out}

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
            label_time=_ints([row.label_time for row in events]),
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


@dataclass
class Expected:
    """Outcome of a partition's rows; all lists have row numbers."""

    accepted: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)
    duplicate: list[int] = field(default_factory=list)
    forced: int = 0


def judge_rows(
    rows: Sequence[Row], config: OrderConfig, share: int | None = None, start: float = float("-inf")
) -> Expected:
    """Return the outcome of each row of a partition, of which at most `share` is buffered."""
    out = Expected()
    max_t = floor = float("-inf")
    lateness, jump = config.limits("s")
    first_seen: dict[int, int] = {}
    for seq, row in enumerate(rows):
        watermark = max(floor, max_t - lateness, start)
        before = first_seen.get(row.event_id) if row.event_id is not None else None
        if row.bad:
            out.bad[seq] = row.bad
            continue
        if config.dedup_window and before is not None and seq - before <= config.dedup_window:
            out.duplicate.append(seq)
            continue
        if row.event_id is not None:
            first_seen[row.event_id] = seq
        if row.t in (BEFORE_ALL, AFTER_ALL):
            out.bad[seq] = "time_range"
        elif jump is not None and row.t > max_t + jump:
            if max_t == float("-inf"):
                out.accepted.append(seq)
                max_t = row.t
            else:
                out.bad[seq] = "time_jump"
        elif row.t < watermark:
            out.late.append(seq)
        else:
            out.accepted.append(seq)
            max_t = max(max_t, row.t)
            if share is not None:
                floor_before = floor
                while True:
                    least = max(floor, max_t - lateness)
                    held = [rows[s].t for s in out.accepted if rows[s].t >= least]
                    if len(held) <= share or min(held) == max_t:
                        break
                    floor = min(held) + 1
                out.forced += floor != floor_before
    return out


def in_order(
    partitions: Mapping[int, Sequence[Row]], accepted: Mapping[int, Sequence[int]]
) -> list[Row]:
    """Return the accepted rows of all partitions in release order."""
    keys = [(partitions[p][seq].t, p, seq) for p, seqs in accepted.items() for seq in seqs]
    return [partitions[p][seq] for _, p, seq in sorted(keys)]


class MemoryLog:
    """Log frames; unsynced ones are lost at a power failure."""

    def __init__(self):
        self.frames = []
        self.num_synced = 0

    @property
    def end(self):
        return LogPosition(0, len(self.frames))

    def append(self, rows, footer):
        self.frames.append((rows, json.dumps(footer)))
        return self.end

    def sync(self):
        self.num_synced = len(self.frames)

    def read(self, start=None):
        first = 0 if start is None else start.byte
        assert first <= len(self.frames), "the log lost its end"
        for i, (rows, footer) in list(enumerate(self.frames))[first:]:
            yield rows, json.loads(footer), LogPosition(0, i + 1)

    def lose_power(self):
        del self.frames[self.num_synced :]


class MemoryDeadLetters:
    """Dead letters; `write` is followed by `sync`, so none is ever lost."""

    def __init__(self):
        self.letters = []

    @property
    def length(self):
        return {"segment": 0, "byte": len(self.letters)}

    def write(self, source, rows):
        self.letters += rows

    def sync(self):
        pass

    def rewind(self, length):
        assert length["byte"] <= len(self.letters), "dead letters are missing"
        del self.letters[length["byte"] :]

    def places(self):
        return [tuple(row.origin.place.values()) for row in self.letters]


@dataclass
class World:
    """A run that can be killed and resumed."""

    config: object
    log: MemoryLog | None = None
    letters: MemoryDeadLetters = field(default_factory=MemoryDeadLetters)
    learned: list = field(default_factory=list)
    checkpoint: tuple | None = None
    ingest: Ingest | None = None
    num_restarts: int = 0

    def start(self, source, max_bad_ratio=1.0, **options):
        position, state = 0, None
        if self.checkpoint is not None:
            position, tensors, meta, ids = self.checkpoint
            state = IngestState.from_json(json.loads(meta), tensors)
            source.ids = NodeIds()
            source.ids.load_state_dict(ids)
        del self.learned[position:]
        self.num_restarts += 1
        self.ingest = Ingest(
            source,
            self.config,
            letters=self.letters,
            max_bad_ratio=max_bad_ratio,
            log=self.log,
            state=state,
            skip_to=position,
            **options,
        )
        return iter(self.ingest)

    def learn(self, events):
        self.learned += events_of([events], self.ingest.ids)

    def save(self, position):
        ids = self.ingest.ids
        state = self.ingest.state_at(position)
        if self.log is not None:
            self.log.sync()
        dense = {name: node for node, name in enumerate(ids.decode(torch.arange(len(ids))))}
        named = [dense[name] for event in self.learned[:position] for name in event[:2]]
        ids_state = ids.state_dict(max(named, default=-1) + 1)
        self.checkpoint = position, state.state_dict(), json.dumps(state.to_json()), ids_state
        self.ingest.committed(state)

    def crash(self, power_fails):
        self.ingest.close()
        if power_fails and self.log is not None:
            self.log.lose_power()

    def run(self, make_source, rng, *, crashes=0.05, checkpoints=0.1):
        while True:
            events = self.start(make_source())
            for batch in events:
                self.learn(batch)
                if rng.random() < checkpoints:
                    first = 0 if self.checkpoint is None else self.checkpoint[0]
                    self.save(rng.randint(first, len(self.learned)))
                if rng.random() < crashes:
                    self.crash(power_fails=rng.random() < 0.5)
                    break
            else:
                return self.learned


def made_partitions(rng, *, num_partitions=None, max_rows=60, spread=6, ids=range(12), **columns):
    x_dim, labels = columns.get("x_dim", 0), columns.get("labels", False)
    event_ids, bad = columns.get("event_ids", 0), columns.get("bad", 0.1)
    partitions = {}
    for p in range(num_partitions or rng.randint(1, 4)):
        start, speed = rng.randint(0, 20), rng.choice([0.2, 1, 3])
        partitions[p] = [
            Row(
                rng.choice(ids),
                rng.choice(ids),
                start + int(i * speed) + rng.randint(-spread, spread),
                tuple(rng.random() for _ in range(x_dim)),
                rng.randint(0, 3) if labels else None,
                rng.randint(0, event_ids) if event_ids else None,
                bad="type" if i and rng.random() < bad else None,
            )
            for i in range(rng.randint(0, max_rows))
        ]
    return partitions


def events_of(batches, ids):
    events = concat(list(batches))
    x = [()] * len(events) if events.x is None else map(tuple, events.x.tolist())
    label = [None] * len(events) if events.label is None else events.label.tolist()
    if events.label is not None:
        assert torch.equal(events.relation, events.label)  # as `ListSource` sets them
    src, dst = ids.decode(events.src), ids.decode(events.dst)
    return list(zip(src, dst, events.t.tolist(), label, x, strict=True))


def as_event(row):
    return row.src, row.dst, row.t, row.label, tuple(torch.tensor(row.x).tolist())


class Ticking(ListSource):
    """A source whose polls take a second each; `clock` returns the time."""

    seconds = 0.0

    def poll(self, wanted, timeout):
        self.seconds += 1
        return super().poll(wanted, timeout)

    def clock(self):
        return self.seconds
