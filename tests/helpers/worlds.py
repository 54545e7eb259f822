"""Worlds of real processes, started in a tenth of a second: a server that has torch forks them."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "torch",
        "torch.distributed",
        "torch._dynamo",  # what an optimizer imports when it is made: seconds
        "pytest",
        "hypothesis",
        "tgflow.distributed.join",
        "tgflow.cli.continual",
        "tgflow.cli.app",
    ]
)
LIMIT_SECONDS = 60.0
"""For a world, on however busy a machine."""
_FOLLOWING_SECONDS = 10.0
"""For the others to end after one has failed."""


@dataclass(frozen=True)
class Outcome:
    """How one process ended."""

    result: Any
    """What the function returned, if it did."""
    error: str
    """The traceback of what it raised, or ""."""
    code: int | None
    """The process's exit code, negative for a signal; None if it had to be killed."""

    @property
    def is_good(self) -> bool:
        return self.code == 0 and not self.error


def in_world(world: int, function: Callable[..., Any], *args: Any, timeout: float = 20.0) -> list:
    """Return what `function(peers, *args)` returns on each rank of a world of `Ranks`.

    The function is one of a module's own, in any file; arguments and results are pickled.

    Raises:
        AssertionError: If a rank raises, dies, or takes more than a minute; with all tracebacks.
    """
    return results_of(run_apart(world, function, *args, joined=timeout))


def results_of(outcomes: Sequence[Outcome]) -> list:
    """Return the results of processes, all of which must have ended well."""
    bad = [
        f"rank {rank} ended with {each.code}\n{each.error}"
        for rank, each in enumerate(outcomes)
        if not each.is_good
    ]
    assert not bad, "\n".join(bad)
    return [each.result for each in outcomes]


def run_apart(
    world: int, function: Callable[..., Any], *args: Any, joined: float | None = None
) -> list[Outcome]:
    """Run `function(rank, *args)` in a process for each rank, and return how each ended.

    Args:
        world: How many processes.
        function: One of a module's own.
        args: What can be pickled.
        joined: The timeout of a world that they are joined to first, for `function(peers, *args)`.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task = pickle.dumps((sys.modules[function.__module__].__file__, function.__name__, args))
        processes = [
            _CONTEXT.Process(target=_run, args=(rank, world, folder, task, joined), daemon=True)
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        _wait(processes)
        return [_outcome(process, folder / str(rank)) for rank, process in enumerate(processes)]


def _wait(processes: Sequence[Any]) -> None:
    """Wait until all have ended; once one has failed the others have little time left."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while any(process.exitcode is None for process in processes):
        if any(process.exitcode not in (None, 0) for process in processes):
            deadline = min(deadline, time.monotonic() + _FOLLOWING_SECONDS)
        if time.monotonic() > deadline:
            return
        time.sleep(0.005)


def _outcome(process: Any, path: Path) -> Outcome:
    code = process.exitcode
    if code is None:
        process.kill()
    process.join()
    said = pickle.loads(path.read_bytes()) if path.exists() else {"result": None, "error": ""}
    return Outcome(**said, code=code)


def _run(rank: int, world: int, folder: Path, task: bytes, joined: float | None) -> None:
    """Do one process's work, and leave what comes of it in a file."""
    torch.set_num_threads(1)
    result, error = None, ""
    try:
        path, name, args = pickle.loads(task)
        function = getattr(_load(path), name)
        first = rank if joined is None else _join(rank, world, folder, joined)
        result = function(first, *args)
    except BaseException:
        error = traceback.format_exc()
    partial = folder / f"{rank}.partial"
    partial.write_bytes(pickle.dumps({"result": result, "error": error}))
    partial.replace(folder / str(rank))
    if error:
        sys.exit(1)


def _join(rank: int, world: int, folder: Path, timeout: float) -> Any:
    """Join a world through a file: `tgflow.join` has tests of its own."""
    import torch.distributed as dist

    from tgflow.distributed.interfaces import choose_interface
    from tgflow.distributed.ranks import Ranks
    from tgflow.distributed.roster import Member

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


def _load(path: str) -> Any:
    """Import a file by its path: a test's module has no name that another process could import."""
    name = "in_world_" + Path(path).stem
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
