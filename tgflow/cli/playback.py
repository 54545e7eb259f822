"""`tgflow playback`: play a file as a stream, or convert it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tgflow.cli.errors import USAGE, CliError
from tgflow.cli.options import with_config
from tgflow.config import Config

SETTINGS = ("stream", "kafka.options")
_RECORDS = "Output to Kafka"


@with_config(SETTINGS, positional="stream.path")
def playback(
    config: Config,
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="File to write (.csv, .jsonl, .parquet, .arrow, ...), kafka://HOST:PORT/TOPIC, "
            "or - for CSV on stdout.",
            rich_help_panel="Output",
        ),
    ] = "-",
    records: Annotated[
        int | None,
        typer.Option(
            help="Events in a record, at most; default: 1000 with --codec arrow, else 1.",
            min=1,
            rich_help_panel=_RECORDS,
        ),
    ] = None,
    partition_by: Annotated[
        str,
        typer.Option(
            help="src: events of one source node share a partition; round_robin: take turns.",
            rich_help_panel=_RECORDS,
        ),
    ] = "src",
) -> None:
    """Play a file of events as a stream, at full speed or at a multiple of real time.

    Writes CSV lines to stdout as events become due, for piping, or a file of another format, or
    records to a Kafka topic, in the form that --codec says.

    [bold]Examples[/bold]

      tgflow playback events.csv.gz --speed 3600 | head
      tgflow playback events.csv.gz --to events.parquet
      tgflow playback events.csv.gz --to kafka://localhost:9092/edges --codec arrow --speed 3600
      tgflow playback wikipedia.csv --format jodie --limit 1000 --to small.jsonl
    """
    from tgflow.cli.playing import play, publish
    from tgflow.streams.transports import find_transport

    try:
        transport = find_transport(to)
    except ValueError as error:
        raise CliError(f"--to: {error}", USAGE) from None
    if transport is not None:
        publish(config, transport, to, records, partition_by)
        return

    play(config, None if to == "-" else Path(to))
