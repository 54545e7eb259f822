"""Labels that come after their events: resolved to log positions, and placed among the events."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from tgflow.base.units import INT64_MAX, INT64_MIN
from tgflow.graph.ids import NodeIds
from tgflow.graph.log import EventLog, Horizon, Rows
from tgflow.streams.ingest.accounting import RowAccounting
from tgflow.streams.ingest.admission import Admitted
from tgflow.streams.ingest.ingest_state import NO_ROWS, IngestState, LabelRows
from tgflow.streams.rows.row_batch import (
    BadRow,
    EventColumns,
    Int64s,
    PartitionedSource,
    Position,
    RowBatch,
)
from tgflow.streams.rows.validate import hashes_of

POLL_SECONDS = 0.1
PIECE = 1 << 20
_NONE = INT64_MAX

# Keys of events.


def edge_keys(src: Int64s, dst: Int64s, t: Int64s) -> Int64s:
    """Return keys of events by `hashed` ids and times, int64 `[N]`."""
    return _mixed(src ^ _mixed(dst ^ _mixed(t)))


def _mixed(x: Int64s) -> Int64s:
    """Return 64 mixed bits of each value (the finalizer of splitmix64)."""
    bits = x.view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Int64s = (bits ^ (bits >> np.uint64(31))).view(np.int64)
    return mixed


def hashed(ids: pa.Array) -> Int64s:
    """Return integer ids as they are, and 64 bits of each text; int64 `[N]`."""
    if pa.types.is_integer(ids.type):
        return np.ascontiguousarray(ids.to_numpy(zero_copy_only=False), dtype=np.int64)
    found = ids.dictionary_encode()
    hashes: Int64s = hashes_of(found.dictionary)[found.indices.to_numpy(zero_copy_only=False)]
    return hashes


class EventIndex:
    """The log positions of events by 64-bit keys, in sorted runs: 16 bytes an event."""

    def __init__(self, first: int = 0) -> None:
        self._runs: list[tuple[Int64s, Int64s]] = []
        self.size = first
        """The position after the last event."""

    def add(self, keys: Int64s) -> None:
        """Add the keys of the next events."""
        order = np.argsort(keys, kind="stable")
        run, self.size = (keys[order], order + self.size), self.size + len(keys)
        while self._runs and len(self._runs[-1][0]) < 2 * len(run[0]):
            older = self._runs.pop()
            both, eids = (np.concatenate(pair) for pair in zip(older, run, strict=True))
            order = np.argsort(both, kind="stable")  # merges sorted runs in linear time
            run = both[order], eids[order]
        if len(run[0]):
            self._runs.append(run)

    def drop(self, first: int) -> None:
        """Forget the events before a position."""
        runs = [(keys[eids >= first], eids[eids >= first]) for keys, eids in self._runs]
        self._runs = [run for run in runs if len(run[0])]

    def find(self, keys: Int64s, since: Int64s) -> Int64s:
        """Return the first two positions of each key, int64 `[2, N]`; the largest int64: none.

        Args:
            keys: Keys, `[N]`.
            since: Positions before which events of each do not count, `[N]`.
        """
        found = [np.full((2, len(keys)), _NONE)]
        for own, eids in self._runs:
            start, is_before = np.searchsorted(own, keys), np.ones(len(keys), np.bool_)
            while is_before.any():
                there = np.minimum(start, len(own) - 1)
                is_before = (start < len(own)) & (own[there] == keys) & (eids[there] < since)
                start += is_before
            place = start + np.array([[0], [1]])
            there = np.minimum(place, len(own) - 1)
            is_found = (place < len(own)) & (own[there] == keys)
            found.append(np.where(is_found, eids[there], _NONE))
        first: Int64s = np.sort(np.concatenate(found), axis=0)[:2]
        return first


COUNTS = ("added", "corrected", "repeated", "refused", "expired")
"""Labels by what became of them: the first of their events, others, equal to the latest, bad, and
those that waited for their event until they were before the horizon."""


class LateLabelReader:
    """Labels that come after their events, from a source of their own, and given by `admit`.

    Each is resolved to the log position of its event, by the id or by source, destination and time.
    One of several events alike is refused; one of an event that has not come waits, up to
    `most_waiting`, and is placed right after it.

    With a horizon events before it do not count: as of the position p at which a label comes,
    these are the ones before h(p). Named by its time, such an event is known as one, and the label
    is refused; named by its id it is as one that has not come. A label waits as long as the
    position at which it came is within the horizon.

    Takes 32 bytes an event: keys in `EventIndex`, and the latest label; 8 more with ids, and 8 with
    a horizon, of the events within it.

    Args:
        source: Source of labels; None: none.
        by_id: Whether events are named by their ids.
        by_time: Whether a label of the source is placed before the first event that is later, which
            needs a source that ends, of one partition; else where it is read.
        horizon: That of the graph; None: events are not forgotten.
    """

    def __init__(
        self,
        source: PartitionedSource | None = None,
        *,
        by_id: bool = False,
        by_time: bool = False,
        most_waiting: int = 100_000,
        max_bad_ratio: float | None = None,
        horizon: Horizon | None = None,
    ) -> None:
        self.source, self.by_id, self._horizon = source, by_id, horizon
        self.position = 0
        """Where a resume would begin: what is before the horizon as of there may be forgotten."""
        self.by_time = by_time and source is not None
        self.name = "labels" if source is None else source.name
        self.index = EventIndex()
        self._ids = Rows(1)
        """Keys by event, if they are ids: only these cannot be computed again."""
        self._clock = Rows(1)
        """The latest time with each event, for a horizon."""
        self.reject: Callable[[Sequence[BadRow]], object] = lambda rows: None
        """Called with the bad rows of the source."""
        self._most_waiting = most_waiting
        self._waiting = self._queue = NO_ROWS
        self._wanted = np.empty(0, np.int64)
        """Sorted keys of the events that labels wait for."""
        self._labels = Rows(2)
        """1 where an event has a late label, and the latest one."""
        self._accounting = RowAccounting(self.name, max_bad_ratio)
        self.counts = dict.fromkeys(COUNTS, 0)
        """Labels by what became of them."""
        self._positions: dict[int, Position] = {}
        self._block: RowBatch | None = None
        self._taken, self._latest = 0, INT64_MIN
        self._has_ended = source is None

    # State

    def restore(self, state: IngestState, log: EventLog, ids: NodeIds) -> None:
        """Continue from a state of ingestion, with the log of its events and their late labels.

        With `by_id`, the ids of these events are given to `keep` first.
        """
        size, first = state.num_released, log.first
        if self._horizon is not None:
            self._clock.drop(first)
            if first < size:
                t = log.read(first, size).t.clamp(min=log.clock_at(first))
                self._clock.add(t.cummax(0).values)
        self.position = size
        if self.by_id and self.index.size < size:
            raise ValueError(
                f"the ids of {size - self.index.size:,} events were not kept, as the run had no "
                "late labels: name events by source, destination and time, by='edge'"
            )
        if not self.by_id:
            self.index = EventIndex(first)
        nodes = np.empty(0, np.int64)
        for start in range(first, first if self.by_id else size, PIECE):
            events = log.read(start, min(start + PIECE, size))
            more = int(max(events.src.max(), events.dst.max())) + 1 - len(nodes)
            if more > 0:
                new = ids.decode(torch.arange(len(nodes), len(nodes) + more))
                nodes = np.concatenate([nodes, hashed(pa.array(new))])
            src, dst = nodes[events.src.numpy()], nodes[events.dst.numpy()]
            self.index.add(edge_keys(src, dst, events.t.numpy()))
        late = log.late.read(log.late.first, len(log.late))
        before = (late["written_at"] < size) & (late["eid"] >= first)
        self._labels.drop(first)
        self._label(late["eid"][before], late["label"][before])
        if state.labels is not None:
            self.repeat(state.labels)
        is_waiting = (state.pending.at <= size) & (state.pending.eid < 0)
        self._wait(state.pending.take(is_waiting), size)
        self._queue = state.pending.take(~is_waiting)

    def _label(self, eid: torch.Tensor, label: torch.Tensor) -> None:
        if len(eid):
            self._labels.grow(int(eid.max()) + 1)
            eid, label = eid[is_held := self._labels.has(eid)], label[is_held]
            self._labels.set(0, eid, torch.ones_like(eid))
            self._labels.set(1, eid, label)

    def repeat(self, state: Mapping[str, Any]) -> None:
        """Continue from a result of `state`, but for labels that are pending."""
        self._accounting.counts.clear()
        self._accounting.restore(state["rows"])
        self.counts |= state["counts"]
        if state["source"] == self.name:
            self._positions = {int(p): position for p, position in state["positions"].items()}
            self._taken, self._latest = state["taken"], state["latest"]

    def _wait(self, rows: LabelRows, position: int) -> None:
        """Let labels wait that came within the horizon as of a position; count the others."""
        is_old = rows.at < self._since(np.array([position]))
        self.counts["expired"] += int(np.count_nonzero(is_old))
        if rows is not self._waiting or is_old.any():
            self._waiting = rows.take(~is_old)
            self._wanted = np.sort(self._waiting.key)

    def state(self) -> dict[str, Any]:
        """Return the state as JSON, without labels that are pending; later changes do not matter.

        They are the name of the source, where it resumes and how many rows further, the latest
        time; counts of rows by partition, as those of events, and of labels.
        """
        rows = {partition: dict(entry) for partition, entry in self._accounting.counts.items()}
        found = {"source": self.name, "taken": self._taken, "latest": self._latest, "rows": rows}
        positions = {str(p): position for p, position in self._positions.items()}
        return found | {"positions": positions, "counts": dict(self.counts)}

    @property
    def pending(self) -> LabelRows:
        """Labels that wait for their events, or stand behind the last one."""
        is_queued = self._queue.size > 0
        return LabelRows.joined([self._waiting, self._queue]) if is_queued else self._waiting

    def report(self) -> dict[str, Any]:
        """Return counts of labels, as in stream.json."""
        refused = {p: {"refused": each["refused"]} for p, each in self._accounting.counts.items()}
        counts = {**self.counts, "waiting": self.num_waiting}
        return {"source": self.name, **counts, "partitions": refused}

    @property
    def num_waiting(self) -> int:
        """Number of labels that wait for their events, or for the next one."""
        return self._waiting.size + self._queue.size

    # Events

    def begin_at(self, first: int) -> None:
        """Begin with the event at a position, where earlier ones are before the horizon."""
        self.index = EventIndex(first)
        self._ids.drop(first)

    def keep(self, keys: Int64s, t: Int64s | None = None) -> None:
        """Add the next events by their keys; their times may be those of `restore`."""
        self._forget()
        if self.by_id and len(keys):
            self._ids.add(torch.tensor(keys))
        if t is not None and len(t) and self._horizon is not None:
            last = self._clock.all[0, -1:].tolist()
            t = np.maximum.accumulate(np.maximum(t, last[0]) if last else t)
            self._clock.add(torch.tensor(t))
        self.index.add(keys)

    def _forget(self) -> None:
        if (first := self.first) > self._labels.first:
            self.index.drop(first)
            self._labels.drop(first)
            self._clock.drop(first)
            self._ids.drop(first // PIECE * PIECE)

    @property
    def first(self) -> int:
        """The first event within the horizon as of `position`."""
        return int(self._since(np.array([self.position]))[0])

    def _since(self, at: Int64s) -> Int64s:
        """Return the beginnings of the horizon as of positions."""
        if self._horizon is None:
            return np.zeros_like(at)
        found: Int64s = self._horizon.begins(at, self._clock.first, self._clock.all[0].numpy())
        return found

    def ids(self) -> Callable[[int, int], Int64s]:
        """Return a function that reads the keys of events `[start, stop)`, for other threads."""
        read = self._ids.reader()
        return lambda start, stop: read(start, stop)[0].numpy()

    def keys_of(self, rows: EventColumns) -> Int64s:
        """Return the keys of events, or of those that labels are of."""
        if not self.by_id:
            return edge_keys(hashed(rows.src), hashed(rows.dst), rows.t)
        assert rows.event_id_hash is not None or not len(rows), "they are not kept"
        return np.empty(0, np.int64) if rows.event_id_hash is None else rows.event_id_hash

    def placed(self, keys: Int64s, first: int) -> LabelRows:
        """Return the labels for the log, by position, up to the end of events that were kept last.

        They are those that waited for one of the events, each right after it, and queued ones.
        Those right after the last event come with the next ones: a checkpoint there lacks them.
        Without events all are returned that stand behind the last one.
        """
        stop = first + len(keys)
        num = int(np.searchsorted(self._queue.at, stop, side="left" if len(keys) else "right"))
        if not num and not self._are_wanted(keys):
            self._wait(self._waiting, stop)
            return NO_ROWS
        due, self._queue = self._queue.take(slice(num)), self._queue.take(slice(num, None))
        waiting = LabelRows.joined([self._waiting, due.take(due.eid < 0)])
        eid = self.index.find(waiting.key, waiting.at)[0]  # of several events alike, the first
        is_found = eid < stop
        is_found[is_found] = waiting.at[is_found] >= self._since(eid[is_found])
        waiting = waiting._replace(
            eid=np.where(is_found, eid, -1), at=np.where(is_found, eid + 1, waiting.at)
        )
        self._wait(waiting.take(~is_found), stop)
        rows = LabelRows.joined([waiting.take(is_found), due.take(due.eid >= 0)])
        num = int(np.searchsorted(rows.at, stop)) if len(keys) else rows.size
        self._queue = LabelRows.joined([rows.take(slice(num, None)), self._queue])
        return self._new(rows.take(slice(num)))

    def _are_wanted(self, keys: Int64s) -> bool:
        if not self._waiting.size:
            return False
        place = np.minimum(np.searchsorted(self._wanted, keys), len(self._wanted) - 1)
        return bool((self._wanted[place] == keys).any())

    def _new(self, rows: LabelRows) -> LabelRows:
        """Count labels in order; return those that differ from the latest of their event."""
        if not rows.size:
            return rows
        order = np.argsort(rows.eid, kind="stable")
        eid, label = rows.eid[order], rows.label[order]
        numbers, held = torch.from_numpy(eid), self._labels
        is_first = ~(held.has(numbers) & (held.at(numbers)[0] > 0)).numpy()
        before = held.at(numbers)[1].numpy()
        same = np.append(False, eid[1:] == eid[:-1])
        before[1:] = np.where(same[1:], label[:-1], before[1:])
        is_first &= ~same
        is_repeated = ~is_first & (before == label)
        self._label(numbers, torch.from_numpy(label))
        num_new = int(np.count_nonzero(~is_repeated))
        added = int(np.count_nonzero(is_first))
        for name, num in zip(COUNTS, (added, num_new - added, rows.size - num_new), strict=False):
            self.counts[name] += num
        return rows.take(np.sort(order[~is_repeated]))

    # Labels

    def queue(self, rows: LabelRows) -> None:
        """Add labels that are in the log, for the next `advance`."""
        self._queue = LabelRows.joined([self._queue, rows])

    def admit(
        self, rows: RowBatch, at: Int64s | int, clock: int | None = None
    ) -> tuple[LabelRows, list[BadRow]]:
        """Resolve rows of labels that come at positions `at`; return them and the bad rows.

        Nothing changes. A time of `INT64_MIN` is replaced by `clock`.
        """
        events, faults = rows.events, rows.bad()
        if not len(events):  # without columns, if no record could be decoded
            return NO_ROWS, faults
        t = events.t if events.label_time is None else events.label_time
        if clock is not None:
            t = np.where(t == INT64_MIN, clock, t)
        at = np.broadcast_to(at, len(events)).astype(np.int64)
        keys = self.keys_of(events)
        since = self._since(at)
        eid, other = self.index.find(keys, since)
        eid = np.where(eid < at, eid, -1)
        assert events.label is not None
        found = LabelRows(at, eid, keys, events.label, t)
        is_refused = other < at
        is_outside = (eid < 0) & self._are_outside(events.t, since, at)
        is_refused |= is_outside
        waits = np.flatnonzero((eid < 0) & ~is_outside)
        over = self._beyond_limit(found.take(waits))
        is_refused[waits[over]] = True
        named = "this id" if self.by_id else "this source, destination and time"
        for row in np.flatnonzero(is_refused).tolist():
            code, text = "ambiguous", f"there are several events of {named}"
            if is_outside[row]:
                code, text = "outside", "its event is before the horizon: --horizon"
            elif eid[row] < 0:
                code, text = "unseen", f"there is no event of {named} yet, and "
                text += f"{self._most_waiting:,} labels wait already: labels.max_waiting"
            number = row if rows.index is None else int(rows.index[row])
            faults.append(BadRow(number, code, text, rows.locate(number)))
        faults.sort(key=lambda fault: fault.index)
        return found.take(~is_refused), faults

    def _are_outside(self, t: Int64s, since: Int64s, at: Int64s) -> npt.NDArray[np.bool_]:
        """Return which events that are not found, at ticks `t`, are before the horizon."""
        if self.by_id or not len(clock := self._clock.all[0].numpy()):
            return np.zeros(len(t), np.bool_)
        first, last = clock[since - self._clock.first], clock[at - 1 - self._clock.first]
        return (since > 0) & (t <= first) & (t < last)

    def _beyond_limit(self, rows: LabelRows) -> Int64s:
        """Return which of further waiting labels are beyond the limit, as numbers."""
        waiting = [self._waiting, self._queue.take(self._queue.eid < 0)]
        if sum(each.size for each in waiting) + rows.size <= self._most_waiting:
            return np.empty(0, np.int64)
        # Their events may be released already, behind them: the limit must not depend on how far.
        # Each leaves with the first row behind its event, or whose horizon begins behind it.
        since, out = self._since(rows.at), list[int]()

        def left(each: LabelRows) -> list[int]:
            events = self.index.find(each.key, each.at)[0]
            ends = np.searchsorted(rows.at, events, side="right")
            ends = np.minimum(ends, np.searchsorted(since, each.at, side="right"))
            found: list[int] = ends.tolist()
            return found

        ends = sorted(left(waiting[0]) + left(waiting[1]))
        for row, end in enumerate(left(rows)):
            while ends and ends[0] <= row:
                heapq.heappop(ends)
            if len(ends) >= self._most_waiting:
                out.append(row)
            else:
                heapq.heappush(ends, end)
        return np.array(out, np.int64)

    # The source

    def start(self) -> None:
        """Start the source where the state has it."""
        if self.source is not None:
            self.source.start(self._positions)

    def close(self) -> None:
        """Close the source."""
        if self.source is not None:
            self.source.close()

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be read once the events have ended."""
        if self.source is None or self.by_time:
            return True
        there = set(self.source.partitions())
        return there <= self.source.ended() | self.source.caught_up()

    def arrived(self, now: int, timeout: float) -> list[LabelRows]:
        """Queue and return what the source delivers now, at position `now`; none placed by time."""
        found: list[LabelRows] = []
        if self.source is None or self.by_time:
            return found
        wanted = set(self.source.partitions()) - self.source.ended()
        for rows in self.source.poll(wanted, timeout) if wanted else ():
            found.append(self._entered(rows, now))
            self._positions[rows.partition] = rows.position
        return found

    def rest(self, now: int) -> list[LabelRows]:
        """Queue and return what the source has behind the last event; no more than may wait."""
        room = max(0, self._most_waiting - self.num_waiting)
        return self.due(np.empty(0, np.int64), now, INT64_MAX, room)

    def due(
        self, t: Int64s, first: int, stop_at: int | None = None, most: int | None = None
    ) -> list[LabelRows]:
        """Queue and return the source's labels before the last of kept events with times `t`.

        A label is placed before the first event that is later than it and all labels before it.

        Args:
            t: Times of the events.
            first: Log position of the first of them.
            stop_at: Time of the first label to leave; None: that of the last event.
            most: Maximum number of labels; None: any.
        """
        found: list[LabelRows] = []
        stop_at = int(t[-1]) if stop_at is None else stop_at  # as more events may have its time
        while self.by_time and (block := self._next_block()) is not None:
            events = block.events
            own = events.t if events.label_time is None else events.label_time
            latest = np.maximum.accumulate(np.concatenate([[self._latest], own]))[1:]
            num = int(np.searchsorted(latest, stop_at))
            if most is not None:
                num = min(num, most)
                most -= num
            numbers = np.arange(len(own)) if block.index is None else block.index
            is_whole = num == len(own)
            stop = block.num_rows if is_whole else int(numbers[num])
            at = first + np.searchsorted(t, latest[:num], side="right")
            found.append(self._entered(_rows(block, 0, stop), at))
            self._latest = int(latest[num - 1]) if num else self._latest
            if not is_whole:
                self._taken += stop
                self._block = _rows(block, stop, block.num_rows)
                break
            self._block, self._taken = None, 0
            self._positions[block.partition] = block.position
        return found

    def _entered(self, rows: RowBatch, at: Int64s | int) -> LabelRows:
        found, bad = self.admit(rows, at)
        self.counts["refused"] += len(bad)
        self.queue(found)
        try:
            self._accounting.enter(rows, Admitted(bad))
        finally:
            self.reject(bad)
        return found

    def _next_block(self) -> RowBatch | None:
        assert self.source is not None
        while self._block is None and not self._has_ended:
            for rows in self.source.poll({0}, POLL_SECONDS):
                if self._taken >= rows.num_rows > 0:  # of a block that was read before
                    self._taken -= rows.num_rows
                    self._positions[0] = rows.position
                    continue
                self._block = _rows(rows, self._taken, rows.num_rows) if self._taken else rows
            self._has_ended = bool(self.source.ended()) and self._block is None
        return self._block


def _rows(rows: RowBatch, start: int, stop: int) -> RowBatch:
    """Return the rows `[start, stop)` of a batch, numbered from 0."""
    index = np.arange(rows.num_rows) if rows.index is None else rows.index
    first, last = np.searchsorted(index, (start, stop))
    return replace(
        rows,
        events=rows.events.take(slice(first, last)),
        index=index[first:last] - start,
        faults={row - start: x for row, x in rows.faults.items() if start <= row < stop},
        num_rows=stop - start,
        locate=lambda row: rows.locate(row + start),
    )
