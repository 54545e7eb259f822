"""A file that grows at its end, and is cut back to what a checkpoint counts of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from tgflow.durable.fs import RealFs, sync_data
from tgflow.durable.replaced import replace_file


class AppendedFile:
    """A file that is written at its end; what is written is at once readable by others.

    It is opened when it is first written or synced, and made when it is written.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._is_named = False
        """Whether its name is on the disk; a process that was killed may have made it just now."""

    @property
    def size(self) -> int:
        """Bytes that it holds, 0 where there is no file."""
        if self._file is not None:
            return self._file.tell()
        return self.path.stat().st_size if self.path.exists() else 0

    def write(self, data: bytes) -> None:
        """Add `data`.

        Raises:
            OSError: If it cannot be written.
        """
        file = self._opened()
        file.write(data)
        file.flush()

    def sync(self) -> int:
        """Return its size once all of it is on the disk.

        Raises:
            OSError: If that is not certain.
        """
        if self._file is None and not self.path.exists():
            return 0
        sync_data(self._opened().fileno())
        if not self._is_named:
            RealFs().sync_directory(self.path.parent)
            self._is_named = True
        return self.size

    def rewind(self, size: int) -> None:
        """Cut it back to its first `size` bytes; one that is shorter stays as it is.

        Raises:
            OSError: If it cannot be cut.
        """
        self.close()
        if self.size > size:
            os.truncate(self.path, size)

    def replace(self, parts: Iterable[bytes]) -> None:
        """Hold these bytes instead; readers, also after a crash, find them or the ones before.

        Raises:
            OSError: If they cannot be written; it is as it was.
        """
        self.close()
        replace_file(self.path, parts)
        self._is_named = False

    def close(self) -> None:
        """Close it; it can be written again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> BinaryIO:
        if self._file is None:
            self._file = self.path.open("ab")
        return self._file
