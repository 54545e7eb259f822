"""What `tgflow playback` does: events from a source to stdout or a file, when they are due."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from tgflow.cli import assemble
from tgflow.cli.errors import USAGE, CliError
from tgflow.config import Config
from tgflow.events import EventBatch
from tgflow.streams import EventSource
from tgflow.streams.pacing import num_played, playback
from tgflow.streams.write import write_events


class PlayedSource:
    """A source's events when they are due, up to a limit; itself a source.

    Args:
        source: Where they come from.
        limit: How many at most, or None.
        speed: Multiple of real time, or None for full speed.
    """

    def __init__(self, source: EventSource, limit: int | None, speed: float | None) -> None:
        self._source, self._limit, self._speed = source, limit, speed
        self.x_dim, self.ids, self.unit = source.x_dim, source.ids, source.unit
        self.num_events = num_played(source, limit)

    def __iter__(self) -> Iterator[EventBatch]:
        return playback(self._source, self._speed, limit=self._limit)


def open_played(config: Config) -> PlayedSource:
    """Open the stream that `config` describes, as its limit and speed let it through."""
    return PlayedSource(assemble.open_source(config), config.stream.limit, config.stream.speed)


def play(config: Config, to: Path | None) -> None:
    """Write the stream of `config` to the file `to`, or without one as CSV to stdout."""
    played = open_played(config)
    if to is None:
        _to_stdout(played)
        return
    try:
        count = write_events(to, played)
    except ValueError as error:
        raise CliError(f"--to: {error}", USAGE) from None
    Console(stderr=True, highlight=False).print(f"wrote {count:,} events to {to}")


def _to_stdout(source: PlayedSource) -> None:
    """Write CSV with a header, flushed after each batch; a closed pipe ends it in silence."""
    out = csv.writer(sys.stdout, lineterminator="\n")
    try:
        for number, batch in enumerate(source):
            rows = batch.to_arrow(source.ids)
            if number == 0:
                out.writerow(rows.schema.names)
            out.writerows(zip(*rows.to_pydict().values(), strict=True))
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
