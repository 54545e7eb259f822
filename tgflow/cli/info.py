"""`tgflow info`: what is in a stream or a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tgflow.cli.errors import NO_INPUT, CliError
from tgflow.cli.options import STREAM_OF_FILES, with_config
from tgflow.config import Config

SETTINGS = (*STREAM_OF_FILES, "graph")


@with_config(SETTINGS, positional="stream.path")
def info(
    config: Config,
    *,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON to stdout.", rich_help_panel="Output")
    ] = False,
) -> None:
    """Describe a stream (nodes, times, ties, repeats, degrees) or a run directory.

    [bold]Examples[/bold]

      tgflow info examples/data/collegemsg.csv.gz
      tgflow info events.parquet --src user --dst item --t at --json
      tgflow info runs/collegemsg-tgn
    """
    path = Path(config.stream.path)
    if (path / "config.toml").exists():
        from tgflow.cli.describe import describe_run

        describe_run(path, json)
        return
    if path.is_dir() and config.stream.path and not any(path.iterdir()):
        raise CliError(f"{path} is an empty folder: neither a stream nor a run", NO_INPUT)
    from tgflow.cli.describe import describe_stream

    describe_stream(config, json)
