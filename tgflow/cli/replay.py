"""`tgflow replay`: play a file as a stream, or convert it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tgflow.cli.options import with_config
from tgflow.config import Config

SETTINGS = ("stream",)


@with_config(SETTINGS, positional="stream.path")
def replay(
    config: Config,
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="File to write (.csv, .jsonl, .parquet, .arrow, ...), or - for CSV on stdout.",
            rich_help_panel="Output",
        ),
    ] = "-",
) -> None:
    """Play a file of events as a stream, at full speed or at a multiple of real time.

    Writes CSV lines to stdout as events become due, for piping, or a file of another format.

    [bold]Examples[/bold]

      tgflow replay events.csv.gz --speed 3600 | head
      tgflow replay events.csv.gz --to events.parquet
      tgflow replay wikipedia.csv --format jodie --limit 1000 --to small.jsonl
    """
    from tgflow.cli.playing import play

    play(config, None if to == "-" else Path(to))
