"""Worlds of real processes, started quickly: forks of the initial test process."""

import json
import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from helpers.processes import IMPORTED_FIRST

LIMIT_SECONDS = 60.0
"""Timeout in seconds for a world on a busy machine."""
_FOLLOWING_SECONDS = 10.0
"""Timeout in seconds for the others after one has failed."""


@dataclass(frozen=True)
class Outcome:
    """Exit record of one process."""

    result: Any
    """Return value of the function, if any."""
    error: str
    """Traceback of its exception, or ""."""
    code: int | None
    """The process's exit code, negative for a signal; None if it had to be killed."""

    @property
    def is_good(self):
        return self.code == 0 and not self.error


def in_world(world, function, *args, timeout=20.0, start="fork"):
    """Return the results of `function(peers, *args)` on each rank of a world of `Ranks`.

    The function must be defined at module level; arguments and results are pickled. Ranks that use
    a GPU must be spawned: a fork of a process that has asked for one cannot.
    """
    return results_of(run_apart(world, function, *args, joined=timeout, start=start))


def results_of(outcomes):
    """Return the results of processes, all of which must have succeeded."""
    bad = [
        f"rank {rank} ended with {each.code}\n{each.error}"
        for rank, each in enumerate(outcomes)
        if not each.is_good
    ]
    assert not bad, "\n".join(bad)
    return [each.result for each in outcomes]


def run_apart(world, function, *args, joined=None, start="fork"):
    """Run `function(rank, *args)` in a process for each rank, and return the exit records.

    With `joined`, the timeout of a world to join first, it is `function(peers, *args)`.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task = (world, folder, pickle.dumps((function, args)), joined)
        if start == "spawn":
            codes = _codes_of(multiprocessing.get_context("spawn"), *task)
        else:
            server().send(task)
            codes = server().recv()
        return [_outcome(code, folder / str(rank)) for rank, code in enumerate(codes)]


@cache
def server():
    """Return the connection to the fork server; the first call forks it from this process.

    Call it before any test runs: a fork inherits locks, but not the threads that hold them.
    """
    for name in IMPORTED_FIRST:
        import_module(name)
    ours, theirs = multiprocessing.Pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # as xdist's thread runs
        is_server = os.fork() == 0
    if is_server:
        ours.close()
        _serve(theirs)
    theirs.close()
    return ours


def _serve(requests):
    """Fork worlds in sequence until the test process ends."""
    try:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        while True:
            requests.send(_codes_of(multiprocessing.get_context("fork"), *requests.recv()))
    finally:
        os._exit(0)


def _codes_of(context, world, *task):
    """Run a world; return the exit code of each process, None if it was killed."""
    processes = [context.Process(target=_run, args=(rank, world, *task)) for rank in range(world)]
    for process in processes:
        process.start()
    _wait(processes)
    return [_end(process) for process in processes]


def _wait(processes):
    """Wait until all have ended, with a short timeout once one has failed."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while any(process.exitcode is None for process in processes):
        if any(process.exitcode not in (None, 0) for process in processes):
            deadline = min(deadline, time.monotonic() + _FOLLOWING_SECONDS)
        if time.monotonic() > deadline:
            return
        time.sleep(0.005)


def _end(process):
    code = process.exitcode
    if code is None:
        process.kill()
    process.join()
    return code


def _outcome(code, path):
    said = pickle.loads(path.read_bytes()) if path.exists() else {"result": None, "error": ""}
    return Outcome(**said, code=code)


def _run(rank, world, folder, task, joined):
    """Run one process's function, and write its result to a file."""
    torch.set_num_threads(1)
    result, error = None, ""
    try:
        function, args = pickle.loads(task)
        first = rank if joined is None else _join(rank, world, folder, joined)
        result = function(first, *args)
    except BaseException:
        error = traceback.format_exc()
    partial = folder / f"{rank}.partial"
    partial.write_bytes(pickle.dumps({"result": result, "error": error}))
    partial.replace(folder / str(rank))
    if error:
        sys.exit(1)


def _join(rank, world, folder, timeout):
    """Join a world through a file; `tgflow.join` is tested separately."""
    import torch.distributed as dist

    from tgflow.ranks.group import Ranks
    from tgflow.ranks.launch import choose_interface
    from tgflow.ranks.rank_info import Member

    store = dist.FileStore(str(folder / "store"), world)
    store.set(f"member/{rank}", json.dumps(asdict(Member.here(rank))))
    members = [Member(**json.loads(store.get(f"member/{each}"))) for each in range(world)]
    interface, _ = choose_interface(None, one_host=True)
    return Ranks(
        dist.PrefixStore("ranks", store),
        rank,
        world,
        timeout=timeout,
        interface=interface,
        members=members,
    )
