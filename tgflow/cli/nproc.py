"""`--nproc`: this command, as several ranks of this host. Needs no torch: it only waits."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from tgflow.config import Config
from tgflow.distributed.launch import MEETING_VARIABLE
from tgflow.distributed.supervise import supervise
from tgflow.runtime.files import RunFiles, run_name
from tgflow.runtime.machine import num_cores

RANKS = "Ranks: processes that learn together"
Nproc = Annotated[
    int | None,
    typer.Option(
        "--nproc",
        help="Learn with this many processes on this host, and the bits of one.",
        rich_help_panel=RANKS,
        show_default=False,
    ),
]
MaxRestarts = Annotated[
    int,
    typer.Option(
        "--max-restarts",
        min=0,
        help="With --nproc: how often in a row all restart, without a new checkpoint in between.",
        rich_help_panel=RANKS,
    ),
]


def is_started() -> bool:
    """Return whether this process is one of those that `--nproc` has started."""
    return MEETING_VARIABLE in os.environ


def run_ranks(
    config: Config, arguments: Sequence[str], nproc: int, max_restarts: int, *, resume: bool
) -> int:
    """Run `tgflow run` as ranks until they are done, and return the exit code.

    After a restart they resume the run: its directory is chosen here. None follows where they read
    stdin, of which what they have read is gone.

    Args:
        config: The run's settings.
        arguments: Those of this process.
        nproc: How many ranks.
        max_restarts: How often in a row to restart without a new checkpoint.
        resume: Whether there may be a run to resume.

    Raises:
        WorldError: If there cannot be `nproc` ranks, or this process is a rank of torchrun.
        FileExistsError: If there are files where the run is to start.
    """
    out = config.run.out if resume else str(_start(config))
    starts = 0

    def command() -> list[str]:
        nonlocal starts
        starts += 1
        place = [] if out is None else ["--out", out]
        again = ["--resume"] if starts > 1 and not resume else []
        return [*_this_program(), *arguments, *place, *again]

    _warn_of_cores(nproc)
    max_restarts = 0 if config.stream.path == "-" else max_restarts
    progress = _newest_checkpoint(Path(out)) if out is not None else lambda: None
    return supervise(command, nproc, max_restarts=max_restarts, progress=progress, say=_say)


def train_ranks(arguments: Sequence[str], nproc: int) -> int:
    """Run `tgflow train` as ranks and return the exit code: there is nothing to restart from.

    A signal ends it as it ends one process, with nothing kept: 128 + n for signal n.

    Raises:
        WorldError: If there cannot be `nproc` ranks, or this process is a rank of torchrun.
    """

    def command() -> list[str]:
        return [*_this_program(), *arguments]

    _warn_of_cores(nproc)
    return supervise(command, nproc, max_restarts=0, keeps=False, say=_say)


def _start(config: Config) -> Path:
    return RunFiles.choose(config.run.out, run_name(config)).path


def _newest_checkpoint(run: Path) -> Callable[[], str | None]:
    """Return what returns the name of the newest checkpoint of a run."""
    folder = run / "checkpoints"
    return lambda: max((entry.name for entry in folder.glob("ckpt-*")), default=None)


def _warn_of_cores(nproc: int) -> None:
    """Say where ranks cannot compute at the same time."""
    if nproc > num_cores():
        _say(f"--nproc {nproc}: there are {num_cores()} cores for them, so they take turns")


def _this_program() -> list[str]:
    return [sys.executable, "-m", "tgflow"]


def _say(text: str) -> None:
    print(f"tgflow: {text}", file=sys.stderr, flush=True)
