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

    It is opened when it is first written, and made if it is not there.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._is_new = False
        """Whether its name may not be on the disk yet."""

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
        if self._file is None:
            self._is_new |= not self.path.exists()
            self._file = self.path.open("ab")
        self._file.write(data)
        self._file.flush()

    def sync(self) -> int:
        """Return its size once all of it is on the disk.

        Raises:
            OSError: If that is not certain.
        """
        if self._file is not None:
            sync_data(self._file.fileno())
        if self._is_new:
            RealFs().sync_directory(self.path.parent)
            self._is_new = False
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
        self._is_new = True

    def close(self) -> None:
        """Close it; it can be written again."""
        if self._file is not None:
            self._file.close()
            self._file = None
