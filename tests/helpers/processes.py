"""Processes: Python in one of its own that finds what tests share, and what Linux knows of them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

TESTS = Path(__file__).parents[1]


def environment() -> dict[str, str]:
    """Return this process's environment, with `helpers` to be imported."""
    path = (str(TESTS), os.environ.get("PYTHONPATH"))
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def stat_of(pid: int) -> list[str]:
    """Return what Linux has of a process behind its name: its state, its parent, and so on.

    Raises:
        OSError: If there is none.
    """
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def is_there(pid: int) -> bool:
    """Return whether a process has not ended."""
    try:
        return stat_of(pid)[0] not in "ZX"
    except OSError:
        return False


def children_of(parent: int, file: str) -> dict[int, bytes]:
    """Return the processes that a process has started and that have not ended.

    Args:
        parent: Who started them.
        file: Of /proc, whose content is returned of each: "cmdline" or "environ".
    """
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with suppress(OSError):
            stat = stat_of(pid)
            if int(stat[1]) == parent and stat[0] not in "ZX":
                found[pid] = Path(f"/proc/{pid}/{file}").read_bytes()
    return found
