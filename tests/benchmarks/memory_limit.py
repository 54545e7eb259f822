"""A process whose memory is limited, the page cache that it fills included: a cgroup of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


class NoLimit(RuntimeError):
    """The system lets this process limit nothing; the message says why."""


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A memory cgroup (version 1 or 2) beneath that of this process."""

    path: Path
    is_v2: bool

    def enter(self) -> None:
        """Move this process in."""
        self._write("cgroup.procs", os.getpid())

    def limit(self, num_bytes: int) -> None:
        """Let the group hold so many bytes, and its page cache give way beyond them."""
        self._write("memory.max" if self.is_v2 else "memory.limit_in_bytes", num_bytes)

    def settle(self) -> int:
        """Drop what page cache there is, begin a new peak, and return the bytes held."""
        if not self.is_v2:
            self._write("memory.force_empty", 0)
            self._write("memory.max_usage_in_bytes", 0)
        return self._read("memory.current" if self.is_v2 else "memory.usage_in_bytes")

    @property
    def peak(self) -> int:
        """The most bytes that the group has held."""
        return self._read("memory.peak" if self.is_v2 else "memory.max_usage_in_bytes")

    def _write(self, name: str, value: int) -> None:
        (self.path / name).write_text(str(value), encoding="ascii")

    def _read(self, name: str) -> int:
        return int((self.path / name).read_text(encoding="ascii"))


@contextmanager
def memory_group(name: str) -> Iterator[MemoryGroup]:
    """Make a group, and remove it when the processes in it have ended.

    Raises:
        NoLimit: If there is no memory controller, or this process may not use it.
    """
    group = _beneath_ours(name)
    try:
        group.path.mkdir()
    except OSError as error:
        raise NoLimit(f"no memory cgroup can be made: {error.strerror}") from error
    try:
        yield group
    finally:
        group.path.rmdir()


def _beneath_ours(name: str) -> MemoryGroup:
    lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    for number, controllers, path in (line.split(":", 2) for line in lines):
        if "memory" in controllers.split(","):
            return MemoryGroup(ROOT / "memory" / path.lstrip("/") / name, is_v2=False)
        if number == "0" and (ROOT / "cgroup.controllers").exists():
            return MemoryGroup(ROOT / path.lstrip("/") / name, is_v2=True)
    raise NoLimit("this system has no memory cgroups")
