"""Named points where tests make a run fail: killed, out of disk, or in error.

`TGFLOW_FAULT="checkpoint.before_rename:2:kill"` fires when the point is met for the second time.
Several are separated by commas. Without the variable a point costs a look into an empty dict.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

POINTS = (
    "log.before_append",
    "log.after_append",
    "log.before_sync",
    "log.after_sync",
    "log.before_create",
    "log.before_create_sync",
    "log.after_create",
    "log.before_rewrite",
    "log.before_cut",
    "log.before_drop",
    "checkpoint.before_directory",
    "checkpoint.before_file",
    "checkpoint.before_sync",
    "checkpoint.after_file",
    "checkpoint.before_link",
    "checkpoint.before_manifest",
    "checkpoint.before_directory_sync",
    "checkpoint.before_rename",
    "checkpoint.after_rename",
    "checkpoint.before_prune",
    "checkpoint.before_remove",
    "checkpoint.before_set_aside",
)
"""Those of the log and the checkpoints; a test fails each in every way."""

KINDS = "kill, raise, enospc, eio or delay=SECONDS"


class InjectedFault(RuntimeError):
    """What the kind `raise` raises."""


@dataclass(slots=True)
class _Fault:
    left: int
    act: Callable[[], None]


def point(name: str) -> None:
    """Fail here if a test asked for it."""
    fault = _faults.get(name)
    if fault is None:
        return
    fault.left -= 1
    if fault.left == 0:
        fault.act()


def arm(spec: str) -> None:
    """Replace what is armed by `spec`, as in `TGFLOW_FAULT`; "" disarms all.

    Raises:
        ValueError: If `spec` cannot be read.
    """
    _faults.clear()
    for entry in filter(None, spec.split(",")):
        try:
            name, count, kind = entry.split(":")
            _faults[name] = _Fault(int(count), _action(name, kind))
        except ValueError:
            text = f"TGFLOW_FAULT has {entry!r}, expected POINT:COUNT:KIND with KIND {KINDS}"
            raise ValueError(text) from None


def _action(name: str, kind: str) -> Callable[[], None]:
    if kind.startswith("delay="):
        seconds = float(kind.removeprefix("delay="))
        return lambda: time.sleep(seconds)
    actions: dict[str, Callable[[], None]] = {
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "raise": lambda: _raise(InjectedFault(f"injected at {name}")),
        "enospc": lambda: _raise(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)),
        "eio": lambda: _raise(OSError(errno.EIO, os.strerror(errno.EIO), name)),
    }
    if kind not in actions:
        raise ValueError(kind)
    return actions[kind]


def _raise(error: Exception) -> None:
    raise error


_faults: dict[str, _Fault] = {}
arm(os.environ.get("TGFLOW_FAULT", ""))
