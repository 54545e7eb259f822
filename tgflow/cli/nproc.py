"""`--nproc`: run this command as several ranks on this host, without importing torch."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tgflow.checkpoint.names import list_checkpoints
from tgflow.cli.errors import say
from tgflow.ranks.launch import MEETING_VARIABLE
from tgflow.ranks.supervise import supervise
from tgflow.run.machine import num_cores
from tgflow.run.records import RunFiles, run_name

RANKS = "Ranks: distributed training"
Nproc = Annotated[
    int | None,
    typer.Option(
        "--nproc",
        help="Train with this many processes on this host; the results do not change.",
        rich_help_panel=RANKS,
        show_default=False,
    ),
]
MaxRestarts = Annotated[
    int,
    typer.Option(
        "--max-restarts",
        min=0,
        help="With --nproc: maximum restarts in a row without a new checkpoint.",
        rich_help_panel=RANKS,
    ),
]


def is_started() -> bool:
    return MEETING_VARIABLE in os.environ


def run_ranks(
    out: str | None,
    path: str,
    model: str,
    arguments: Sequence[str],
    nproc: int,
    max_restarts: int,
    *,
    resume: bool,
) -> int:
    """Run `tgflow run` as ranks until they are done, with restarts, and return the exit code."""
    if not resume:
        out = str(RunFiles.choose(out, run_name(path, model)).path)
    words = [*arguments, *([] if out is None else ["--out", out])]
    starts = itertools.count()

    def command() -> list[str]:
        is_restart = next(starts) > 0
        return _command([*words, *(["--resume"] if is_restart and not resume else [])])

    def newest_checkpoint() -> str | None:
        entries = [] if out is None else list_checkpoints(Path(out) / "checkpoints")
        return entries[-1].path.name if entries else None

    _warn_of_cores(nproc)
    max_restarts = 0 if path == "-" or Path(path).is_fifo() else max_restarts
    return supervise(command, nproc, max_restarts=max_restarts, progress=newest_checkpoint, say=say)


def train_ranks(arguments: Sequence[str], nproc: int) -> int:
    """Run `tgflow train` as ranks, without restarts, and return the exit code."""
    _warn_of_cores(nproc)
    return supervise(lambda: _command(arguments), nproc, max_restarts=0, keeps=False, say=say)


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "tgflow", *arguments]


def _warn_of_cores(nproc: int) -> None:
    if nproc > num_cores():
        say(f"{nproc} processes share {num_cores()} cores")
