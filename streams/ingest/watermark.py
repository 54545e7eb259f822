"""How far a partition's time has come, and which of its events come too late or too early.

All of it is decided event by event: how rows are cut into polls makes no difference.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tgflow.streams.ingest.config import BEFORE_ALL, OrderConfig
from tgflow.streams.ingest.ordered_rows import Rows
from tgflow.streams.rows.checks import Int64s


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """How far a partition has come.

    Args:
        max_t: The latest time of its events.
        floor: The watermark it was forced to.
    """

    max_t: int = BEFORE_ALL
    floor: int = BEFORE_ALL

    def watermark(self, allowed_lateness: int) -> int:
        """Return the time that its next event must have at least."""
        return max(self.floor, self.max_t - allowed_lateness, BEFORE_ALL)


@dataclass(frozen=True, slots=True)
class Rejected:
    """An event that is not taken.

    Args:
        row: Its number among those classified.
        code: `late`, `time_jump` or `time_range`.
        text: What was wrong, what arrived, and the way out.
    """

    row: int
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Classified:
    """What became of some events.

    Args:
        front: How far the partition has come with them.
        rejected: Those not taken, in order.
        forced: How often its watermark was forced on.
    """

    front: PartitionProgress
    rejected: list[Rejected] = field(default_factory=list)
    forced: int = 0


@dataclass(slots=True)
class BoundedWindow:
    """A partition's events at or after its watermark, up to a number of rows and of bytes.

    Args:
        most_rows: How many there may be.
        most_bytes: How many bytes they may take together.
    """

    most_rows: int
    most_bytes: int
    num_bytes: int = 0
    _heap: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, rows: Rows | None, most_rows: int, most_bytes: int) -> BoundedWindow:
        """Return a window of `rows`."""
        window = cls(most_rows, most_bytes)
        if rows is not None:
            for t, size in zip(rows.t.tolist(), _each(rows.sizes(), len(rows)), strict=True):
                window.add(t, size)
        return window

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, t: int, size: int) -> None:
        """Add an event."""
        heapq.heappush(self._heap, (t, size))
        self.num_bytes += size

    def leave(self, watermark: int) -> None:
        """Let those before the watermark go."""
        while self._heap and self._heap[0][0] < watermark:
            self.num_bytes -= heapq.heappop(self._heap)[1]

    def force(self) -> int | None:
        """If they are too many let the earliest go; returns the watermark that takes, or None."""
        watermark = None
        while len(self._heap) > self.most_rows or self.num_bytes > self.most_bytes:
            watermark = self._heap[0][0] + 1
            self.leave(watermark)
        return watermark


def classify(
    t: Int64s,
    front: PartitionProgress,
    config: OrderConfig,
    *,
    released: int = BEFORE_ALL,
    window: BoundedWindow | None = None,
    sizes: int | Int64s = 0,
) -> Classified:
    """Return which of the next events of a partition are taken.

    Args:
        t: Their times, contiguous.
        front: How far the partition had come.
        config: What is too late, too far ahead, or no time at all.
        released: All before it has been released already.
        window: Its events at or after its watermark, if they could become too many; it is changed.
        sizes: Bytes of each event, for the window.
    """
    if not len(t):
        return Classified(front)
    if window is not None:
        return _classify_each(t, front, config, released, window, sizes)
    if int(t.min()) < config.first_t or int(t.max()) > config.last_t:
        return _classify_in_range(t, front, config, released)
    least = max(front.floor, released)
    if config.jump is None and t[0] >= max(least, front.max_t) and (t[:-1] <= t[1:]).all():
        return Classified(PartitionProgress(int(t[-1]), front.floor))
    before = np.empty_like(t)
    before[0] = front.max_t
    np.maximum.accumulate(np.maximum(t[:-1], front.max_t), out=before[1:])
    jump = config.jump
    if jump is not None and _is_beyond(t, before, jump, front).any():
        return _classify_each(t, front, config, released, None, sizes)
    late = (t < least) | ((t < before) & (_distance(before, t) > config.allowed_lateness))
    rejected = [
        _late(row, int(t[row]), max(least, int(before[row]) - config.allowed_lateness), config)
        for row in np.flatnonzero(late).tolist()
    ]
    return Classified(PartitionProgress(max(int(before[-1]), int(t[-1])), front.floor), rejected)


def _is_beyond(
    t: Int64s, before: Int64s, jump: int, front: PartitionProgress
) -> npt.NDArray[np.bool_]:
    """Return which events are too far ahead of those before them."""
    beyond = (t > before) & (_distance(t, before) > jump)
    if front.max_t == BEFORE_ALL:
        beyond[0] = False
    return beyond


def _distance(later: Int64s, earlier: Int64s) -> npt.NDArray[np.uint64]:
    """Return `later - earlier` where that is not negative, whatever its size."""
    return later.view(np.uint64) - earlier.view(np.uint64)


def _classify_in_range(
    t: Int64s, front: PartitionProgress, config: OrderConfig, released: int
) -> Classified:
    """Judge as if events outside of the range of times were not there."""
    is_out = (t < config.first_t) | (t > config.last_t)
    rows = np.flatnonzero(~is_out)
    classified = classify(t[rows], front, config, released=released)
    rejected = [Rejected(int(rows[r.row]), r.code, r.text) for r in classified.rejected]
    rejected += [_out_of_range(row, int(t[row]), config) for row in np.flatnonzero(is_out).tolist()]
    return Classified(classified.front, sorted(rejected, key=lambda r: r.row))


def _classify_each(
    t: Int64s,
    front: PartitionProgress,
    config: OrderConfig,
    released: int,
    window: BoundedWindow | None,
    sizes: int | Int64s,
) -> Classified:
    """Judge one event after the other."""
    rejected: list[Rejected] = []
    max_t, floor, forced = front.max_t, front.floor, 0
    jump, lateness = config.jump, config.allowed_lateness
    for row, (at, size) in enumerate(zip(t.tolist(), _each(sizes, len(t)), strict=True)):
        watermark = max(floor, max_t - lateness, released)
        if not config.first_t <= at <= config.last_t:
            rejected.append(_out_of_range(row, at, config))
        elif jump is not None and max_t != BEFORE_ALL and at > max_t + jump:
            rejected.append(_jump(row, at, max_t, jump))
        elif at < watermark:
            rejected.append(_late(row, at, watermark, config))
        else:
            max_t = max(max_t, at)
            if window is None:
                continue
            window.add(at, size)
            window.leave(max_t - lateness)
            if (to := window.force()) is not None:
                floor, forced = to, forced + 1
    return Classified(PartitionProgress(max_t, floor), rejected, forced)


def _each(sizes: int | Int64s, num: int) -> Iterator[int]:
    return iter([sizes] * num if isinstance(sizes, int) else sizes.tolist())


def _late(row: int, t: int, watermark: int, config: OrderConfig) -> Rejected:
    text = (
        f"t is {t}, {watermark - t} ticks before the watermark {watermark}; allowed_lateness is "
        f"{config.allowed_lateness}, raise it to wait longer for such events"
    )
    return Rejected(row, "late", text)


def _jump(row: int, t: int, max_t: int, jump: int) -> Rejected:
    text = f"t is {t}, {t - max_t} ticks after the latest so far, {max_t}; max_time_jump is {jump}"
    return Rejected(row, "time_jump", text)


def _out_of_range(row: int, t: int, config: OrderConfig) -> Rejected:
    text = f"t is {t}, outside of [{config.first_t}, {config.last_t}]"
    return Rejected(row, "time_range", text)
