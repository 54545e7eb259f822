"""health.json: how a run is, for whoever watches over it.

It is replaced every few seconds while the process lives, whether or not events come. A watcher
takes the run for dead if `updated` is older than `stale_after_seconds`, and else reads `state`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from tgflow.durable.replaced import replacing
from tgflow.runtime.files import finite

State = Literal[
    "starting",
    "recovering",
    "running",
    "waiting",
    "paused",
    "stopping",
    "stopped",
    "done",
    "failed",
]
STATES: tuple[State, ...] = State.__args__  # type: ignore[attr-defined]
"""`waiting` for events, `paused` near the memory limit or on a full disk, `stopped` by a signal."""
SECONDS = 5.0
"""Between two files, at most."""
STALE_AFTER = 6 * SECONDS
LIVE: tuple[State, ...] = STATES[:6]


def write_health(path: Path, state: State, facts: Mapping[str, Any]) -> bool:
    """Replace the file `path` at once; return whether the disk let it.

    Args:
        path: Where to.
        state: How the run is.
        facts: What else is known, plain values.
    """
    health = {
        "state": state,
        "updated": time.time(),
        "stale_after_seconds": STALE_AFTER,
        "pid": os.getpid(),
        **facts,
    }
    try:
        with replacing(path, sync=False) as partial:
            partial.write_text(json.dumps(finite(health), indent=1, allow_nan=False) + "\n")
    except OSError:  # a full disk is reported elsewhere
        return False
    return True


def read_health(path: Path) -> dict[str, Any] | None:
    """Return what the file says and `alive`: whether a process keeps it fresh; None without one."""
    try:
        health: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        fresh = abs(time.time() - health["updated"]) <= health["stale_after_seconds"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return health | {"alive": fresh and health.get("state") in LIVE}
