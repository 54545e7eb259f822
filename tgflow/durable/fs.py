"""File operations of writers of durable files; files that grow, and files that are replaced."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def sync_data(fd: int) -> None:
    """Return once what was written to a file is on the disk, by what the system has for that."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:  # macOS, where fsync leaves data in the disk's cache
        fcntl.fcntl(fd, getattr(fcntl, "F_FULLFSYNC"))  # noqa: B009


class RealFs:
    """File operations of the operating system; tests replace some. All may raise OSError."""

    def create(self, path: Path) -> int:
        """Make a file that must not be there, and return a descriptor to write it by."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def append_to(self, path: Path) -> int:
        """Return a descriptor that writes at the end of a file that is there."""
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)

    def write(self, fd: int, data: bytes | memoryview) -> None:
        """Write all of `data`."""
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(fd, view) :]

    def sync(self, fd: int) -> None:
        """Return once all that was written is on the disk."""
        sync_data(fd)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def truncate(self, path: Path, size: int) -> None:
        """Cut a file to `size` bytes, and wait until that is on the disk."""
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            os.fsync(fd)
        finally:
            os.close(fd)

    def make_directory(self, path: Path) -> None:
        """Make a directory that must not be there."""
        path.mkdir()

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name."""
        os.link(source, target, follow_symlinks=False)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file or directory another name; a file there is replaced."""
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def remove_directory(self, path: Path) -> None:
        """Remove a directory and all files in it."""
        for entry in list(path.iterdir()):
            entry.unlink()
        path.rmdir()

    def sync_directory(self, path: Path) -> None:
        """Return once the names in a directory are on the disk."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def make_directories(fs: RealFs, path: Path) -> None:
    """Make a directory and those above it that are missing, names on the disk; or do nothing."""
    if path.is_dir():
        return
    make_directories(fs, path.parent)
    fs.make_directory(path)
    fs.sync_directory(path.parent)


@contextmanager
def replacing(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Give a path to write a file to, which takes the place of `path` where the block is left.

    Readers find what was written or what was there before, also after a crash if it is synced.
    Which of both a crash leaves is certain once the names in the directory are synced.

    Args:
        path: The file. Meanwhile `.NAME.partial` is beside it; an error in the block removes that.
        sync: Whether the bytes are on the disk before the names change.

    Raises:
        OSError: If it cannot be written; `path` is as it was.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        if sync:
            with partial.open("rb") as written:
                sync_data(written.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def replace_file(path: Path, parts: Iterable[bytes]) -> None:
    """Let a file hold these bytes and no others, synced; it is made if it is not there."""
    with replacing(path) as partial, partial.open("wb") as file:
        file.writelines(parts)


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
