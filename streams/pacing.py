"""Real-time playback and rebatching of events."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tgflow.base.units import seconds_per_tick
from tgflow.graph.events import EventBatch, concat
from tgflow.streams.open import Source


def playback(
    source: Source,
    speed: float | None = None,
    *,
    limit: int | None = None,
    clock: Any = time,
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


def num_played(source: Source, limit: int | None) -> int | None:
    """Return the number of events of `source` up to `limit`, None if unknown."""
    known = source.num_events
    return min(known, limit) if known is not None and limit is not None else known


def _first(batches: Iterable[EventBatch], limit: int) -> Iterator[EventBatch]:
    """Yield the first `limit` events."""
    left = limit
    if left == 0:
        return
    for batch in batches:
        yield batch if len(batch) <= left else batch[:left]
        left -= min(len(batch), left)
        if left == 0:
            return


def _paced(batches: Iterable[EventBatch], seconds: float, clock: Any) -> Iterator[EventBatch]:
    start, first = clock.monotonic(), None
    for batch in batches:
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
