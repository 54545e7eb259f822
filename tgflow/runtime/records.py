"""metrics.jsonl: a record a line, all of the latest ones and an even share of those before.

Which ones are kept depends on how many were ever written, and on nothing else: a run that was
killed keeps the records that it would have kept.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tgflow.durable.appended import AppendedFile
from tgflow.runtime.checked_json import DamagedJson, checked_line, read_checked

LATEST = 1 << 14
"""Records that are kept, whatever comes."""
EARLIER = 1 << 14
"""Records before those that are kept at most."""
STEP = 1 << 13
"""Records between two times that the file is thinned out."""
NUMBER = "number"
"""The key that has how many records were written before this one."""


class RecordFile:
    """The records of a run, at most `LATEST + EARLIER + STEP` of them.

    Of those before the latest one in every 2, 4, 8, ... is kept, as few as needed. The file is
    replaced where it is thinned out, so that readers find it whole at any time.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._file = AppendedFile(path)
        self._numbers = array("q")
        self._next = 0

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record, which strict JSON can hold; at once readable by others.

        Raises:
            OSError: If it cannot be written.
        """
        self._file.write(checked_line({**record, NUMBER: self._next}).encode() + b"\n")
        self._numbers.append(self._next)
        self._next += 1
        if self._next % STEP == 0 and self._next > LATEST:
            with suppress(OSError):  # a disk that is full will say so where it matters
                self._thin()

    def sync(self) -> dict[str, int]:
        """Return what `rewind` needs to come back here, once all records are on the disk.

        Raises:
            OSError: If that is not certain.
        """
        return {"bytes": self._file.sync(), "lines": self._next}

    def rewind(self, mark: Mapping[str, int]) -> None:
        """Cut off the records that were written after a `sync`; a file with fewer stays as it is.

        Args:
            mark: What that returned; one without `lines` is of a file that was never thinned out.

        Raises:
            OSError: If the file cannot be cut.
        """
        size, lines = mark["bytes"], mark.get("lines")
        self.close()
        self._numbers, end = array("q"), 0
        for line in _numbered(self.path):
            if line.end > size if lines is None else line.number >= lines:
                break
            self._numbers.append(line.number)
            end = line.end
        self._file.rewind(end)
        last = self._numbers[-1] + 1 if self._numbers else 0
        self._next = last if lines is None else lines

    def close(self) -> None:
        """Close the file; it can be written again."""
        self._file.close()

    def _thin(self) -> None:
        every = 1
        while self._next // every > EARLIER:
            every *= 2
        first = self._next - LATEST
        kept = [number >= first or number % every == 0 for number in self._numbers]
        lines = self.path.read_bytes().splitlines(keepends=True)
        if all(kept) or len(lines) != len(kept):  # somebody else has written to it
            return
        self._file.replace(line for line, is_kept in zip(lines, kept, strict=True) if is_kept)
        pairs = zip(self._numbers, kept, strict=True)
        self._numbers = array("q", (number for number, is_kept in pairs if is_kept))


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the file: its number among all that were ever written, and the byte after it."""

    number: int
    end: int


def _numbered(path: Path) -> Iterator[_Line]:
    """Yield the whole lines of a file; one that is damaged has the number after the one before."""
    number, end = -1, 0
    for line in whole_lines(path):
        number, end = number + 1, end + len(line)
        with suppress(DamagedJson):
            number = int(read_checked(line).get(NUMBER, number))
        yield _Line(number, end)


def whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the whole lines of a file, none if it is not there."""
    if path.exists():
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))
