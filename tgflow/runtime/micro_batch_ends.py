"""Micro-batches that end by the clock: where they ended is written down, and repeated on resume."""

from __future__ import annotations

import re
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tgflow.checkpoint import Checkpoint, CheckpointStore
from tgflow.durable.appended import AppendedFile
from tgflow.durable.errors import LogCorrupt
from tgflow.events import MICRO_BATCH_END, EventBatch
from tgflow.runtime.checkpoints import Component
from tgflow.runtime.directory import RunDirectory
from tgflow.streams.prefetch import Ended, Prefetcher

FILE = "micro-batches.txt"
_AHEAD = 2
_PAUSE = 0.1
"""Seconds for which nothing happens where no event waits to be learned."""

MANY = 1 << 20
"""Bytes of the file from which on what no checkpoint needs is given back: some 60,000 ends."""
_TORN = re.compile(rb"\d*( [0-9a-f]{0,8})?\0*")
"""What a crash leaves of a line."""


class EndsDamaged(LogCorrupt):
    """Where micro-batches have ended cannot be read."""


class MicroBatchEnds(Component):
    """A file of the log positions at which the micro-batches of a run have ended, a line each.

    Behind each stands the CRC-32 of its digits. A part of checkpoints that is outside of them: ends
    beyond the newest one are those that a run which resumes has to repeat. Those up to the oldest
    one that is kept are given back in bulk, so the file has at most `MANY` bytes, or twice what
    checkpoints need.

    Args:
        path: The file.
        position: Where the run resumes.
        keep: Whether to repeat ends beyond that: not where other settings count from here on.
        oldest: Returns the position of the oldest checkpoint that is kept; None without any.

    Raises:
        EndsDamaged: If an end that is to be repeated cannot be read.
        OSError: If the file cannot be read or cut.
    """

    def __init__(
        self,
        path: Path,
        position: int,
        *,
        keep: bool = True,
        oldest: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._file, self._oldest = AppendedFile(path), oldest
        self._writing = threading.Lock()
        lines = _lines(path)
        start = _first_beyond(lines, position)
        ends = _ends(path, lines, start, position) if keep else []
        self.to_repeat = deque(ends)
        """The ends beyond the position, in order."""
        self._file.rewind(sum(map(len, lines[: start + len(ends)])))

    def add(self, position: int) -> None:
        """Write down that a micro-batch ends here, before anybody learns from it. From any thread.

        Raises:
            OSError: If that fails.
        """
        with self._writing:
            self._file.write(line_of(position))

    def save(self, writer: Checkpoint) -> None:
        """Return once all ends are on the disk."""
        with self._writing:
            self._file.sync()

    def saved(self) -> None:
        """Give back the ends that no checkpoint needs any more, once they are many."""
        oldest = self._oldest() if self._file.size >= MANY else None
        if oldest is None:
            return
        with self._writing, suppress(OSError):  # a disk that is full will say so where it matters
            lines = _lines(self._file.path)
            needed = lines[_first_beyond(lines, oldest) :]
            if 2 * len(needed) <= len(lines):
                self._file.replace(needed)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def line_of(position: int) -> bytes:
    """Return the line of an end."""
    number = b"%d" % position
    return b"%s %08x\n" % (number, zlib.crc32(number))


def _end_of(line: bytes) -> int | None:
    """Return the end that a line is of, None if it is damaged."""
    number = line.partition(b" ")[0]
    return int(number) if number.isdigit() and line == line_of(int(number)) else None


def _lines(path: Path) -> list[bytes]:
    if not path.exists():
        return []
    with path.open("rb") as file:
        return list(file)


def _first_beyond(lines: Sequence[bytes], position: int) -> int:
    """Return the index of the line after the last whose end is not beyond `position`."""
    ends = (_end_of(line) for line in lines)
    upto = (i for i, end in enumerate(ends, 1) if end is not None and end <= position)
    return max(upto, default=0)


def _ends(path: Path, lines: Sequence[bytes], start: int, position: int) -> list[int]:
    """Return the ends of the lines from `start` on; of one that a crash cut off, none.

    Raises:
        EndsDamaged: If a line is damaged.
    """
    found: list[int] = []
    for number, line in enumerate(lines[start:], start + 1):
        end = _end_of(line)
        if end is None and number == len(lines) and _TORN.fullmatch(line):
            break
        if end is None:
            raise EndsDamaged(
                f"{path} is damaged in line {number}, so where micro-batches have ended after "
                f"event {position:,} is not known; without this file they end by the clock again"
            )
        found.append(end)
    return found


def open_ends(
    directory: RunDirectory, position: int, store: CheckpointStore
) -> MicroBatchEnds | None:
    """Return the ends of a run's micro-batches; None if its clock ends none.

    Ends that other settings have made are not repeated.

    Args:
        directory: The run's.
        position: Where it resumes.
        store: Its checkpoints.

    Raises:
        EndsDamaged: If one that is to be repeated cannot be read.
        OSError: If they cannot be read.
    """
    if directory.config.scores.max_wait is None:
        return None

    def oldest() -> int | None:
        meta = store.oldest_kept()
        return None if meta is None else int(meta["position"])

    keep = directory.effect == "any_time"
    return MicroBatchEnds(directory.path / FILE, position, keep=keep, oldest=oldest)


class TimedStream:
    """A stream whose micro-batches end when they are full, or when they have waited long enough.

    Ends that are to be repeated are, whatever the clock says.

    Args:
        stream: Read from a thread of its own, a few batches ahead.
        ends: Where ends are written down, and what is to be repeated.
        position: Log position of the first event to come.
        batch_size: Events of a full micro-batch.
        max_wait: Seconds that the first event of a micro-batch waits for others.
        clock: Returns seconds that never go back.
    """

    def __init__(
        self,
        stream: Iterable[EventBatch],
        ends: MicroBatchEnds,
        *,
        position: int,
        batch_size: int,
        max_wait: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.unit = getattr(stream, "unit", None)
        """What a tick is, if the stream says so."""
        self._stream, self._ends = stream, ends
        self._start = self._at = position
        self._batch_size, self._max_wait, self._clock = batch_size, max_wait, clock
        self._since = 0.0
        """When the first event of the micro-batch that fills up was received."""

    def __iter__(self) -> Iterator[EventBatch]:
        """Yield the stream's batches, and `MICRO_BATCH_END` where one ends early.

        Raises what the stream raises.
        """
        ahead = Prefetcher(iter(self._stream), _AHEAD)
        try:
            while True:
                events = ahead.take(0.0)
                if events is None and self._left() <= 0:
                    self._ends.add(self._at)
                    self._start = self._at
                    yield MICRO_BATCH_END
                    continue
                if events is None:
                    events = ahead.take(self._left())
                if events is not None:
                    yield from self._divided(events)
        except Ended:
            return
        finally:
            ahead.close()

    def _left(self) -> float:
        """Return for how many seconds to wait for more events; 0 or less: no longer."""
        if self._at == self._start or self._ends.to_repeat:
            return _PAUSE
        return self._since + self._max_wait - self._clock()

    def _divided(self, events: EventBatch) -> Iterator[EventBatch]:
        """Yield events, and what ends micro-batches where earlier ones did or they are full."""
        while len(events):
            repeated = self._ends.to_repeat
            end = repeated[0] if repeated else self._start + self._batch_size
            part, events = events[: end - self._at], events[end - self._at :]
            if self._at == self._start:
                self._since = self._clock()
            self._at += len(part)
            if self._at < end:
                yield part
                return
            if repeated:
                repeated.popleft()
            else:
                self._ends.add(end)
            is_early, self._start = end - self._start < self._batch_size, end
            yield part
            if is_early:
                yield MICRO_BATCH_END
