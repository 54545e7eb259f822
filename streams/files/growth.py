"""Data that grows while it is read: a file that others write to, and what comes by stdin."""

from __future__ import annotations

import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Protocol

POLL_SECONDS = 0.2
CHUNK_BYTES = 1 << 16
ENOUGH_LINES = 2
"""Lines that no comment is: a header and a row."""


class Growth(Protocol):
    """Says whether more may come."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing more will come: all there is can be read."""
        ...

    def wait(self, stop: threading.Event) -> bool:
        """Wait a little for more; return False if `stop` is set."""
        ...

    def fill(self, size: int) -> None:
        """Wait until what was there before, `size` bytes, is there again."""
        ...


class FileTail:
    """A file or folder that may grow at any time."""

    is_complete = False

    def wait(self, stop: threading.Event) -> bool:
        """Wait until it is time to look again; return False if `stop` is set."""
        return not stop.wait(POLL_SECONDS)

    def fill(self, size: int) -> None:
        """Do nothing: what was there has stayed."""


class Spool:
    """Copies a pipe to a file, which can be read at any place and again, in a thread of its own.

    The file is removed with the process.

    Args:
        pipe: What to copy to its end.
        name: Of the file.
    """

    def __init__(self, pipe: IO[bytes], name: str) -> None:
        self._folder = TemporaryDirectory(prefix="tgflow-")
        self.path = Path(self._folder.name) / name
        self.path.touch()
        self._ended = threading.Event()
        self._error: Exception | None = None
        threading.Thread(target=self._copy, args=(pipe,), name="tgflow-pipe", daemon=True).start()

    @property
    def is_complete(self) -> bool:
        """Whether the pipe has ended, and all of it is in the file.

        Raises:
            OSError: If it could not be copied.
        """
        if self._ended.is_set() and self._error is not None:
            raise self._error
        return self._ended.is_set()

    def wait(self, stop: threading.Event) -> bool:
        """Wait a little for the pipe's end; return False if `stop` is set."""
        self._ended.wait(POLL_SECONDS / 4)
        return not stop.is_set()

    def fill(self, size: int) -> None:
        """Wait until the file holds `size` bytes, or the pipe has ended."""
        while self.path.stat().st_size < size and not self._ended.wait(POLL_SECONDS / 4):
            pass

    def join(self) -> None:
        """Wait until the pipe has ended."""
        self._ended.wait()

    def _copy(self, pipe: IO[bytes]) -> None:
        try:
            with self.path.open("wb", buffering=0) as file:
                while chunk := pipe.read1(CHUNK_BYTES):  # type: ignore[attr-defined]
                    file.write(chunk)
        except Exception as error:  # who reads the file raises it
            self._error = error
        self._ended.set()


def wait_for_rows(path: Path, growth: Growth, comments: tuple[bytes, ...]) -> None:
    """Wait until a file that grows holds a header and a row, or is complete."""
    forever = threading.Event()
    while not growth.is_complete and growth.wait(forever):
        with path.open("rb") as file:
            lines = (line for line in file if line.endswith(b"\n"))
            rows = (line for line in lines if not line.startswith(comments))
            if sum(1 for _, _ in zip(rows, range(ENOUGH_LINES), strict=False)) == ENOUGH_LINES:
                return
