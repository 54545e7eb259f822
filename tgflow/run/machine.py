"""Facts about the machine and the process."""

from __future__ import annotations

import os
import platform
import resource
import sys
from functools import cache
from importlib.metadata import version
from typing import Any

_version = cache(version)
PAGE_SIZE = resource.getpagesize()


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
