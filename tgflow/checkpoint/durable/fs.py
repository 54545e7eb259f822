"""Durable file operations; append-only files, and files replaced atomically."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def sync_data(fd: int) -> None:
    """Sync a file's data to disk with the call that the system provides."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:  # macOS, where fsync leaves data in the disk's cache
        fcntl.fcntl(fd, getattr(fcntl, "F_FULLFSYNC"))  # noqa: B009


class RealFs:
    """File operations of the operating system; tests override some. All may raise OSError."""

    def create(self, path: Path) -> int:
        """Create a file that must not exist; return a writable descriptor."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def append_to(self, path: Path) -> int:
        """Return a descriptor that appends to an existing file."""
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)

    def write(self, fd: int, data: bytes | memoryview) -> None:
        """Write all of `data`."""
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(fd, view) :]

    def sync(self, fd: int) -> None:
        """Sync a file to disk."""
        sync_data(fd)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def truncate(self, path: Path, size: int) -> None:
        """Truncate a file to `size` bytes, and sync."""
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            os.fsync(fd)
        finally:
            os.close(fd)

    def make_directory(self, path: Path) -> None:
        """Create a directory that must not exist."""
        path.mkdir()

    def link(self, source: Path, target: Path) -> None:
        """Create a hard link."""
        os.link(source, target, follow_symlinks=False)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or directory; an existing file is replaced."""
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
        """Sync the names in a directory to disk."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def make_directories(fs: RealFs, path: Path) -> None:
    """Create a directory and its missing parents durably; do nothing if it exists."""
    if path.is_dir():
        return
    make_directories(fs, path.parent)
    fs.make_directory(path)
    fs.sync_directory(path.parent)


@contextmanager
def writing() -> Iterator[None]:
    """Give an OSError of the block the exit code of a write error, also for a missing folder."""
    try:
        yield
    except OSError as error:
        vars(error)["exit_code"] = os.EX_IOERR
        raise


@contextmanager
def replacing(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Yield a temporary path, `.NAME.partial`, which replaces `path` when the block exits.

    Readers see the new or the old content, also after a crash if its bytes were synced (`sync`).
    After a crash the choice between the two is certain only once the directory is synced. On an
    error the temporary file is removed.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        if sync:
            with partial.open("rb") as written:
                sync_data(written.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(NotADirectoryError):
            partial.unlink(missing_ok=True)
        raise


def replace_file(path: Path, parts: Iterable[bytes]) -> None:
    """Replace the content of a file, synced; the file is created if missing."""
    with replacing(path) as partial, partial.open("wb") as file:
        file.writelines(parts)


def crc32_of(path: Path, num_bytes: int = sys.maxsize) -> int:
    """Return the CRC-32 of the first bytes of a file; 0 without one."""
    crc = 0
    with path.open("rb") if path.exists() else io.BytesIO() as file:
        while data := file.read(min(num_bytes, 1 << 20)):
            crc, num_bytes = zlib.crc32(data, crc), num_bytes - len(data)
    return crc


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class AppendedFile:
    """An append-only file; written data is readable by other processes at once.

    It is opened, and created, by the first write.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._is_named = False
        """Whether its name is on disk; a killed process may have created it just before."""

    @property
    def size(self) -> int:
        """Size in bytes, 0 without a file."""
        if self._file is not None:
            return self._file.tell()
        return self.path.stat().st_size if self.path.exists() else 0

    def write(self, data: bytes) -> None:
        """Append `data`."""
        file = self._opened()
        file.write(data)
        file.flush()

    def sync(self) -> None:
        """Sync all written data to disk; any thread may call it."""
        was_named, self._is_named = self._is_named, self.path.exists()  # unless it is replaced now
        if not self._is_named:
            return
        try:
            with self.path.open("rb") as file:
                sync_data(file.fileno())
            if not was_named:
                RealFs().sync_directory(self.path.parent)
        except OSError:
            self._is_named = False
            raise

    def rewind(self, size: int) -> None:
        """Truncate to the first `size` bytes; a shorter file stays unchanged."""
        self.close()
        if self.size > size:
            os.truncate(self.path, size)

    def replace(self, parts: Iterable[bytes]) -> None:
        """Replace the content; readers, also after a crash, see the new or the old bytes."""
        self.close()
        replace_file(self.path, parts)
        self._is_named = False

    def close(self) -> None:
        """Close the file; a later write reopens it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> BinaryIO:
        if self._file is None:
            with writing():
                self._file = self.path.open("ab")
        return self._file
