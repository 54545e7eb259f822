"""When events are handed out, and how many at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from tgflow.events import EventBatch, concat
from tgflow.streams.clock import Clock, SystemClock
from tgflow.streams.source import Source
from tgflow.units import seconds_per_tick


def playback(
    source: Source, speed: float | None = None, *, clock: Clock | None = None
) -> Iterator[EventBatch]:
    """Yield the events of `source` when they are due, stream time running at `speed`.

    The first event is due at once. Batches are split so that no event comes early and those with
    one time come together; whoever is slow gets what has become due meanwhile in one batch.

    Args:
        source: The stream.
        speed: How many times real time, more than 0; None or infinity does not wait at all.
        clock: What to wait by; None takes the machine's.

    Raises:
        ValueError: If `speed` is not more than 0.
    """
    if speed is not None and not speed > 0:
        raise ValueError(f"speed must be more than 0, got {speed}; None replays at full speed")
    if speed is None or math.isinf(speed):
        return iter(source)
    return _paced(source, seconds_per_tick(source.unit) / speed, clock or SystemClock())


def _paced(source: Source, seconds: float, clock: Clock) -> Iterator[EventBatch]:
    start, first = clock.monotonic(), None
    for batch in source:
        if len(batch) == 0:
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
    """Yield the same events in batches of exactly `size`; the last one may be shorter.

    Raises:
        ValueError: If `size < 1`.
    """
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
