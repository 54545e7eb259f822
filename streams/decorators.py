"""Streams over streams: playback, limits, rebatching, and where micro-batches end."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

import numpy as np

from tgflow.base.units import seconds_per_tick
from tgflow.graph.event_stream import EventStream
from tgflow.graph.events import MICRO_BATCH_END, EventBatch, LateLabels, concat
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.prefetch import Ended, Prefetcher
from tgflow.streams.source import Source

GRACE_SECONDS = 10.0
_AHEAD = 2
_PAUSE = 0.1


def playback(
    source: Source, speed: float | None = None, *, limit: int | None = None, clock: Any = time
) -> Iterator[EventBatch]:
    """Yield the events of `source` when they are due, with stream time running at `speed`.

    The first event is due at once. Batches are split so that no event is early and events of equal
    time stay together; a slow consumer receives all events due meanwhile in one batch.

    Args:
        source: The stream.
        speed: Multiple of real time, more than 0; None or infinity does not wait at all.
        limit: Maximum number of events; nothing is read beyond them. None: all.
        clock: Has `monotonic()` and `sleep(seconds)`, as the module `time` does.

    Raises:
        ValueError: If `speed` is not more than 0.

    Example:
        >>> source = tg.open_stream({"src": [1, 2], "dst": [3, 3], "t": [5, 7]}, time_unit="s")
        >>> [len(batch) for batch in tg.playback(source, limit=1)]
        [1]
    """
    if speed is not None and not speed > 0:
        raise ValueError(f"speed must be more than 0, got {speed}; None replays at full speed")
    batches = iter(source) if limit is None else _first(source, limit)
    if speed is None or math.isinf(speed):
        return batches
    return _paced(batches, seconds_per_tick(source.unit) / speed, clock)


def _first(batches: Iterable[EventBatch], limit: int) -> Iterator[EventBatch]:
    left = limit
    if left == 0:
        return
    for batch in batches:
        if isinstance(batch, LateLabels):
            yield batch
            continue
        yield batch if len(batch) <= left else batch[:left]
        left -= min(len(batch), left)
        if left == 0:
            return


def _paced(batches: Iterable[EventBatch], seconds: float, clock: Any) -> Iterator[EventBatch]:
    start, first = clock.monotonic(), None
    for batch in batches:
        if len(batch) == 0 or isinstance(batch, LateLabels):
            yield batch
            continue
        t = batch.t.numpy()
        first = int(t[0]) if first is None else first
        due = start + (t - first) * seconds
        done = 0
        while done < len(batch):
            wait = float(due[done]) - clock.monotonic()
            if wait > 0:
                clock.sleep(wait)
            ready = int(np.searchsorted(due, clock.monotonic(), side="right"))
            ties = int(np.searchsorted(t, t[done], side="right"))
            stop = max(ready, ties)
            yield batch[done:stop]
            done = stop


def rebatch(batches: Iterable[EventBatch], size: int) -> Iterator[EventBatch]:
    """Yield the same events in batches of exactly `size`; the last one may be shorter."""
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    return _rebatched(batches, size)


def _rebatched(batches: Iterable[EventBatch], size: int) -> Iterator[EventBatch]:
    waiting: list[EventBatch] = []
    missing = size
    for batch in batches:
        start = 0
        while len(batch) - start >= missing:
            yield concat([*waiting, batch[start : start + missing]])
            start += missing
            waiting, missing = [], size
        if start < len(batch):
            waiting.append(batch[start:])
            missing -= len(batch) - start
    if waiting:
        yield concat(waiting)


class PacedStream(EventStream, AbstractContextManager["PacedStream"]):
    """The batches of ingestion, up to a limit, at a speed; the next waits while they are paused.

    Args:
        ingest: Closed on exit.
        flow: Pauses and stops, as `tgflow.run.stream.FlowControl`; the clock of `playback`.
        speed: As for `playback`.
        limit: Maximum number of events since the very first one; None: all.
        learned: Number of events before those of `ingest`.
    """

    def __init__(
        self, ingest: Ingest, flow: Any, speed: float | None, limit: int | None, learned: int
    ) -> None:
        super().__init__(ingest)
        left = None if limit is None else max(0, limit - learned)
        self._batches = playback(ingest, speed, limit=left, clock=flow)
        self._ingest, self._flow, self._limit = ingest, flow, limit
        self._busy = threading.Lock()

    @property
    def num_events(self) -> int | None:
        """Expected number of events since the very first one, None if unknown."""
        known, limit = self._ingest.num_events, self._limit
        return min(known, limit) if known is not None and limit is not None else known

    def __iter__(self) -> Iterator[EventBatch]:
        while True:
            with self._busy:
                self._flow.wait()
                if (batch := next(self._batches, None)) is None:
                    self._flow.check()
                    return
            yield batch

    def __exit__(self, *error: object) -> None:
        self._flow.stop()
        if self._busy.acquire(timeout=GRACE_SECONDS):  # otherwise a thread still reads it
            self._busy.release()
            self._ingest.close()

    def share(self, learned: int) -> float | None:
        """Return the share of the stream that `learned` events are, None if unknown."""
        total = self.num_events
        if total is None and self._ingest.progress:
            first = self._ingest.first
            total = first + int((self._ingest.num_released - first) / self._ingest.progress)
        most = min((size for size in (total, self._limit) if size is not None), default=None)
        return None if most is None else min(learned / most, 1.0) if most else 1.0


class SteppedStream(EventStream):
    """A stream that ends micro-batches with its time steps.

    A longer step becomes several full micro-batches and a last one. A resumed run repeats the ends,
    as they depend on the events alone.
    """

    def __iter__(self) -> Iterator[EventBatch]:
        """Yield the stream's events, and `MICRO_BATCH_END` between those of two times."""
        last: int | None = None
        for events in self.source:
            if not len(events) or isinstance(events, LateLabels):
                yield events
                continue
            if last is not None and int(events.t[0]) != last:
                yield MICRO_BATCH_END
            last = int(events.t[-1])
            changes = (events.t[1:] != events.t[:-1]).nonzero().flatten() + 1
            for begin, end in pairwise([0, *changes.tolist(), len(events)]):
                if begin:
                    yield MICRO_BATCH_END
                yield events[begin:end]


class TimedStream(EventStream):
    """A stream whose micro-batches end when they are full, or after a maximum wait.

    Args:
        stream: The stream.
        position: Number of events before it.
        batch_size: Events of a full micro-batch.
        max_wait: Seconds after its first event at which a micro-batch ends.
        ends: Ends of earlier micro-batches to repeat; removed as they are.
        on_end: Called with the end of each other micro-batch, before it is yielded.
    """

    def __init__(
        self,
        stream: Iterable[EventBatch],
        position: int,
        batch_size: int,
        max_wait: float,
        ends: deque[int],
        on_end: Callable[[int], object],
    ) -> None:
        super().__init__(stream)
        self._ends, self._on_end = ends, on_end
        self._start = self._at = position
        self._batch_size, self._max_wait = batch_size, max_wait
        self._since = 0.0
        """Arrival time of the first event of the current micro-batch."""

    def __iter__(self) -> Iterator[EventBatch]:
        ahead = Prefetcher(iter(self.source), _AHEAD)
        try:
            while True:
                events = ahead.take(0.0)
                if events is None and self._left() <= 0:
                    self._on_end(self._at)
                    self._start = self._at
                    yield MICRO_BATCH_END
                    continue
                if events is None:
                    events = ahead.take(self._left())
                if events is MICRO_BATCH_END:
                    self._start = self._at
                if events is MICRO_BATCH_END or isinstance(events, LateLabels):
                    yield events
                elif events is not None:
                    yield from self._divided(events)
        except Ended:
            return
        finally:
            ahead.close()

    def _left(self) -> float:
        """Return the remaining seconds to wait for events; 0 or less: end the micro-batch."""
        if self._at == self._start or self._ends:
            return _PAUSE
        return self._since + self._max_wait - time.monotonic()

    def _divided(self, events: EventBatch) -> Iterator[EventBatch]:
        """Yield events, with markers where earlier micro-batches ended or the current is full."""
        while len(events):
            repeated = self._ends
            end = repeated[0] if repeated else self._start + self._batch_size
            part, events = events[: end - self._at], events[end - self._at :]
            if self._at == self._start:
                self._since = time.monotonic()
            self._at += len(part)
            if self._at < end:
                yield part
                return
            if repeated:
                repeated.popleft()
            else:
                self._on_end(end)
            is_early, self._start = end - self._start < self._batch_size, end
            yield part
            if is_early:
                yield MICRO_BATCH_END
