"""The file of the ends of micro-batches, which a resumed run repeats."""

from __future__ import annotations

import re
import threading
import zlib
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from tgflow.checkpoint import Checkpoint, CheckpointStore, Component
from tgflow.checkpoint.durable.errors import LogCorrupt
from tgflow.checkpoint.durable.fs import AppendedFile

ENDS_FILE = "micro-batches.txt"
MANY = 1 << 20
"""Size of the file in bytes from which unused ends are removed: some 60,000 ends."""
_TORN = re.compile(rb"\d*( [0-9a-f]{0,8})?\0*")
"""A line truncated by a crash."""


class EndsDamaged(LogCorrupt):
    """Raised when the file of micro-batch ends cannot be read."""


class MicroBatchEnds(Component):
    """A file of the log positions at which the micro-batches of a run have ended, one per line.

    Each is followed by the CRC-32 of its digits. A resumed run repeats the ends beyond the newest
    checkpoint, unless `keep` is False; those before the oldest checkpoint in `store` are removed in
    bulk.
    """

    def __init__(
        self, path: Path, position: int, *, keep: bool = True, store: CheckpointStore | None = None
    ) -> None:
        self._file, self._store = AppendedFile(path), store
        self._writing = threading.Lock()
        lines = _lines(path)
        start = _first_beyond(lines, position)
        self.to_repeat: deque[int] = deque()
        """The ends beyond the position, in order."""
        for number, line in enumerate(lines[start:] if keep else [], start + 1):
            if (end := _end_of(line)) is not None:
                self.to_repeat.append(end)
            elif number < len(lines) or not _TORN.fullmatch(line):
                text = f"{path} is damaged in line {number}, so the ends of micro-batches after "
                text += f"event {position:,} are unknown; without this file they end by the clock "
                raise EndsDamaged(f"{text}again")
        self._file.rewind(sum(map(len, lines[: start + len(self.to_repeat)])))

    def add(self, position: int) -> None:
        """Append the end of a micro-batch, before it is learned. Thread-safe."""
        with self._writing:
            self._file.write(line_of(position))

    def save(self, writer: Checkpoint) -> None:
        writer.outside.append(self._file.sync)

    def saved(self) -> None:
        """Remove the ends that no checkpoint needs any more, once there are many."""
        if self._store is None or self._file.size < MANY:
            return
        if (oldest := self._store.oldest_kept()) is None:
            return
        with self._writing, suppress(OSError):  # a full disk is reported elsewhere
            lines = _lines(self._file.path)
            needed = lines[_first_beyond(lines, oldest["position"]) :]
            if 2 * len(needed) <= len(lines):
                self._file.replace(needed)

    def close(self) -> None:
        self._file.close()


def line_of(position: int) -> bytes:
    number = b"%d" % position
    return b"%s %08x\n" % (number, zlib.crc32(number))


def _end_of(line: bytes) -> int | None:
    number = line.partition(b" ")[0]
    return int(number) if number.isdigit() and line == line_of(int(number)) else None


def _lines(path: Path) -> list[bytes]:
    with path.open("rb") if path.exists() else nullcontext(()) as file:
        return [*file]


def _first_beyond(lines: Sequence[bytes], position: int) -> int:
    """Return the index of the line after the last whose end is not beyond `position`."""
    ends = (_end_of(line) for line in lines)
    return max(
        (i for i, end in enumerate(ends, 1) if end is not None and end <= position), default=0
    )
