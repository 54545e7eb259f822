"""Facts about the machine and the process."""

from __future__ import annotations

import os
import platform
import resource
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Any

_version = cache(version)
PAGE_SIZE = resource.getpagesize()
CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file")
_V2 = ("memory.max", "memory.current", "file")
"""Files of a control group with its limit and its use, and what of that the system may drop."""


def rss_bytes() -> int:
    """Return the current memory of the process; its peak where only that is known."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * PAGE_SIZE
    except OSError:
        return peak_rss_bytes()


def anonymous_bytes() -> int:
    """Return the memory of the process without pages of files, which the system may drop."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            facts = dict(line.split(":", 1) for line in file)
        return sum(int(facts[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem"))
    except (KeyError, OSError):
        return rss_bytes()


def free_memory() -> float:
    """Return the bytes that machine and control group still have for this process."""
    found = [inf]
    with suppress(OSError, ValueError, KeyError):
        found.append(_numbers("/proc/meminfo")["MemAvailable:"] << 10)
    with suppress(OSError):
        for line in OWN_CGROUPS.read_text().splitlines():
            _, _, kinds_and_group = line.partition(":")
            kinds, _, group = kinds_and_group.partition(":/")
            if kinds and "memory" not in kinds.split(","):
                continue
            root, names = CGROUPS / ("memory" if kinds else ""), _V1 if kinds else _V2
            for folder in (root / group, root):  # a container sees its own as the root
                with suppress(OSError, ValueError, KeyError):
                    stat = _numbers(folder / "memory.stat")
                    most, held = (int((folder / x).read_text()) for x in names[:2])
                    most = min(most, stat.get("hierarchical_memory_limit", most))
                    found.append(most - held + sum(stat[x] for x in names[2:]))
    return min(found)


def memory_maps() -> tuple[float, float]:
    """Return the memory maps of this process, and how many more it may have; OSError if unknown."""
    most = int(Path("/proc/sys/vm/max_map_count").read_text())
    with open("/proc/self/maps", "rb") as file:
        held = sum(1 for _ in file)
    return held, most - held


def _numbers(path: str | Path) -> dict[str, int]:
    lines = (line.split() for line in Path(path).read_text().splitlines())
    return {name: int(number) for name, number, *_ in lines}


def peak_rss_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe() -> dict[str, Any]:
    """Return the machine and the versions that a figure depends on, except the GPU."""
    return {
        "cores": num_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": _version("torch"),
        "tgflow": _version("tgflow-learn"),
    }
