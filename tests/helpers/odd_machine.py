"""tgflow on a faulty machine: its disk is full at times, or read-only, or its clock jumps.

    python -m helpers.odd_machine full:7 run --stream ...

is `tgflow run --stream ...` there; the number is the seed of the fault times. Writes fail before
anything is written, or in the middle of it. tgflow has no code for it.
"""

import errno
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from tgflow.checkpoint.durable.fs import AppendedFile, RealFs

WRITES = ("create", "write", "sync", "make_directory", "link", "rename", "sync_directory")
"""Operations of `RealFs` that a disk can fail."""
FULL_SHARE, FULL_SECONDS = 0.02, 0.3
"""Probability that a disk becomes full, and its duration."""
READ_ONLY_SHARE = 0.005
JUMP_SHARE, JUMP_SECONDS = 0.2, 1e7


class Full:
    """A disk that is full at times; half of a write may be on it."""

    code = errno.ENOSPC

    def __init__(self, chance: random.Random) -> None:
        self._chance, self._until = chance, 0.0

    def refuses(self) -> bool:
        """Whether writes fail now."""
        now = time.monotonic()
        if now >= self._until and self._chance.random() < FULL_SHARE:
            self._until = now + FULL_SECONDS * self._chance.random()
        return now < self._until


class ReadOnly:
    """A disk that becomes read-only at some time."""

    code = errno.EROFS

    def __init__(self, chance: random.Random) -> None:
        self._chance, self._is_over = chance, False

    def refuses(self) -> bool:
        """Whether writes fail now."""
        self._is_over = self._is_over or self._chance.random() < READ_ONLY_SHARE
        return self._is_over


def spoil_disk(disk: Full | ReadOnly, chance: random.Random) -> None:
    """Install the disk for all durable files."""
    for owner, names in ((RealFs, WRITES), (AppendedFile, ("write",))):
        for name in names:
            setattr(owner, name, _refusing(getattr(owner, name), name, disk, chance))


def _refusing(
    call: Callable[..., Any], name: str, disk: Full | ReadOnly, chance: random.Random
) -> Callable[..., Any]:
    def refusing(self: Any, *args: Any) -> Any:
        if not disk.refuses():
            return call(self, *args)
        if name == "write" and disk.code == errno.ENOSPC and isinstance(self, RealFs):
            fd, data = args
            call(self, fd, memoryview(data).cast("B")[: chance.randrange(len(data) + 1)])
        raise OSError(disk.code, os.strerror(disk.code), name)

    return refusing


def let_clock_jump(chance: random.Random) -> None:
    """Make the system clock jump by months in both directions."""
    real, offset = time.time, [0.0]

    def jumping() -> float:
        if chance.random() < JUMP_SHARE:
            offset[0] = chance.uniform(-JUMP_SECONDS, JUMP_SECONDS)
        return real() + offset[0]

    time.time = jumping


def make_odd(spec: str) -> None:
    """Make this process's machine faulty: "full:SEED", "read-only:SEED" or "clock:SEED"."""
    kind, _, seed = spec.partition(":")
    chance = random.Random(int(seed))
    if kind == "clock":
        let_clock_jump(chance)
    else:
        spoil_disk({"full": Full, "read-only": ReadOnly}[kind](chance), chance)


if __name__ == "__main__":
    from tgflow.cli import main

    make_odd(sys.argv.pop(1))
    sys.exit(main())
