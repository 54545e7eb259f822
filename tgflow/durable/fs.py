"""The few file operations of writers of durable files, so that tests can stand in for them."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


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
