"""Python subprocesses with the test helpers, and their state in /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

TESTS = Path(__file__).parents[1]


def environment() -> dict[str, str]:
    """Return this process's environment, with `helpers` importable."""
    path = (str(TESTS), os.environ.get("PYTHONPATH"))
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def stat_of(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name: state, parent, and so on.

    Raises:
        OSError: If the process does not exist.
    """
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def is_there(pid: int) -> bool:
    """Return whether a process is running."""
    try:
        return stat_of(pid)[0] not in "ZX"
    except OSError:
        return False


def children_of(parent: int, file: str) -> dict[int, bytes]:
    """Return the running child processes of a process.

    Args:
        parent: Process id of the parent.
        file: File in /proc whose content is returned for each: "cmdline" or "environ".
    """
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with suppress(OSError):
            stat = stat_of(pid)
            if int(stat[1]) == parent and stat[0] not in "ZX":
                found[pid] = Path(f"/proc/{pid}/{file}").read_bytes()
    return found
