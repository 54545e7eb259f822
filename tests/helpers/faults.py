"""Named fault points for tests: kill, full disk, or error.

    arm("checkpoint.before_rename:2:kill")

fires at the second hit of the point; several are separated by commas; `delay=20` waits 20
seconds. tgflow has no code for it: a point is a call, identified by callee and caller, and arming
wraps the callee. In a separate process,

    python -m helpers.faults POINT:COUNT:KIND run --stream ...

arms and then is `tgflow run --stream ...`. With `pieces` in place of points a log keeps and forgets
events in pieces of 64.
"""

import errno
import functools
import importlib
import os
import signal
import sys
import time
from dataclasses import dataclass

FS = "tgflow.checkpoint.durable.fs:RealFs"
LOG = "tgflow.checkpoint.durable.log:DurableLog"
DIRECTORY = "tgflow.checkpoint.directory"
STORE = "tgflow.checkpoint.store:CheckpointStore"


class InjectedFault(RuntimeError):
    """Raised by the fault kind `raise`."""


@dataclass(frozen=True)
class Point:
    """A call of `target`, "module:name", by the function of the qualified name `caller`."""

    target: str
    caller: str = ""
    """"": any caller."""
    is_after: bool = False


DURABLE = {
    "log.before_append": Point(f"{FS}.write", "DurableLog._append"),
    "log.after_append": Point(f"{FS}.write", "DurableLog._append", is_after=True),
    "log.before_sync": Point(f"{FS}.sync", "DurableLog._sync"),
    "log.after_sync": Point(f"{FS}.sync", "DurableLog._sync", is_after=True),
    "log.before_create": Point(f"{FS}.create", "DurableLog._create"),
    "log.before_create_sync": Point(f"{FS}.sync", "DurableLog._create"),
    "log.after_create": Point(f"{LOG}._create", is_after=True),
    "log.before_rewrite": Point(f"{LOG}._create", "DurableLog._reopen"),
    "log.before_cut": Point(f"{FS}.truncate", "DurableLog._recover"),
    "log.before_drop": Point(f"{FS}.unlink", "DurableLog.drop_before"),
    "checkpoint.before_directory": Point(f"{FS}.make_directory", "prepared"),
    "checkpoint.before_file": Point(f"{FS}.create", "_write_file"),
    "checkpoint.before_sync": Point(f"{FS}.sync", "_write_file"),
    "checkpoint.after_file": Point(f"{DIRECTORY}:_write_file", is_after=True),
    "checkpoint.before_link": Point(f"{FS}.link", "_link"),
    "checkpoint.before_manifest": Point("tgflow.checkpoint.directory:make_manifest", "prepared"),
    "checkpoint.before_directory_sync": Point(f"{FS}.sync_directory", "prepared"),
    "checkpoint.before_rename": Point(f"{FS}.rename", "CheckpointStore.save"),
    "checkpoint.after_rename": Point(f"{FS}.sync_directory", "sync_names"),
    "checkpoint.before_prune": Point(f"{STORE}._prune", "CheckpointStore.save"),
    "checkpoint.before_remove": Point(f"{FS}.remove_directory", "CheckpointStore._remove"),
    "checkpoint.before_set_aside": Point(f"{FS}.rename", "CheckpointStore._set_aside"),
}
"""Fault points of the log and the checkpoints; a test injects every kind at each."""
RANKS, SAVES = "tgflow.ranks.group:Ranks", "tgflow.ranks.saves"
BETWEEN_RANKS = {
    f"ranks.{when}_{name}": Point(target, is_after=when == "after")
    for when in ("before", "after")
    for name, target in (
        ("exchange", f"{RANKS}.exchange"),
        ("gather", f"{RANKS}.gather"),
        ("broadcast", f"{RANKS}.broadcast"),
        ("place", f"{SAVES}:broadcast_json"),
        ("files", f"{SAVES}:collect_json"),
    )
}
"""Fault points of communication between ranks, on any thread."""
LETTERS = "DeadLetterFiles"
REFUSED = {
    "letters.before_write": Point(f"{FS}.write", f"{LETTERS}.write"),
    "letters.after_write": Point(f"{FS}.write", f"{LETTERS}.write", is_after=True),
    "letters.before_sync": Point(f"{FS}.sync", f"{LETTERS}.sync"),
    "letters.after_sync": Point(f"{FS}.sync", f"{LETTERS}.sync", is_after=True),
}
POINTS = DURABLE | BETWEEN_RANKS | REFUSED


def arm(spec):
    """Replace the armed faults by `spec`; "" disarms all."""
    while _undo:
        _undo.pop()()
    for entry in filter(None, spec.split(",")):
        name, count, kind = entry.split(":")
        call_at(name, int(count), _action(name, kind))


def call_at(name, count, act):
    """Call `act` at the `count`-th hit of a point, until all is disarmed."""
    _wrap(POINTS[name], _counted(count, act))


def _wrap(point, meet):
    """Inject the fault at a point until all is disarmed."""
    owner, name = _resolve(point.target)
    was = getattr(owner, name)

    @functools.wraps(was)
    def call(*args, **kwargs):
        is_it = point.caller in {"", _caller()}
        if is_it and not point.is_after:
            meet()
        result = was(*args, **kwargs)
        if is_it and point.is_after:
            meet()
        return result

    setattr(owner, name, call)
    _undo.append(lambda: setattr(owner, name, was))


def _caller():
    """Return the caller of a wrapped function, which may be wrapped several times."""
    depth = 2
    while sys._getframe(depth).f_code.co_qualname == "_wrap.<locals>.call":
        depth += 1
    return sys._getframe(depth).f_code.co_qualname


def _resolve(target):
    module, _, path = target.partition(":")
    *owners, name = path.split(".")
    return functools.reduce(getattr, owners, importlib.import_module(module)), name


def _counted(count, act):
    left = count

    def meet():
        nonlocal left
        left -= 1
        if left == 0:
            act()

    return meet


def _action(name, kind):
    if kind.startswith("delay="):
        return functools.partial(time.sleep, float(kind.removeprefix("delay=")))
    actions = {
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "raise": lambda: _raise(InjectedFault(f"injected at {name}")),
        "enospc": lambda: _raise(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)),
        "eio": lambda: _raise(OSError(errno.EIO, os.strerror(errno.EIO), name)),
    }
    return actions[kind]


def _raise(error):
    raise error


_undo = []

if __name__ == "__main__":
    from tgflow.cli import main

    if sys.argv[1] == "pieces":
        sys.argv.pop(1)
        for _module, _name in (
            ("tgflow.graph.log", "EventLog.piece"),
            ("tgflow.run.ingestion", "PIECE"),
            ("tgflow.streams.ingest.late_labels", "PIECE"),
        ):
            _owner, _attribute = _resolve(f"{_module}:{_name}")
            setattr(_owner, _attribute, 64)
    else:
        arm(sys.argv.pop(1))
    sys.exit(main())
