"""Implementation of `tgflow playback`: events to stdout, a file or a transport."""

from __future__ import annotations

import csv
import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tgflow.cli import assemble
from tgflow.cli.errors import USAGE, CliError
from tgflow.config import Config, flag_of
from tgflow.events import EventBatch
from tgflow.runtime.ingestion import section_of
from tgflow.streams import EventSource
from tgflow.streams.pacing import num_played, playback
from tgflow.streams.transports import Transport, scheme_of
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


FLUSH_EVENTS = 50_000
"""Events after which they are flushed."""


def publish(
    config: Config, transport: Transport, url: str, records: int | None, partition_by: str
) -> None:
    """Write the stream of `config` to an address of a transport.

    Args:
        config: The stream, its speed, the codec, and the options of the transport's section.
        transport: What the address's scheme stands for.
        url: The address.
        records: Events in a record, at most; None for the codec's default.
        partition_by: How events are divided among partitions.

    Raises:
        CliError: If the transport cannot be written to, or an option does not fit.
        OSError: If what is sent is not taken.
    """
    if transport.publish is None:
        raise CliError(f"--to: {scheme_of(url)}:// can be read, but not written to", USAGE)
    source = open_played(config)
    options = getattr(section_of(config, url), "options", {})
    try:
        publisher = transport.publish(
            url,
            source.ids,
            codec=config.stream.codec,
            records=records,
            partition_by=partition_by,
            options=options,
        )
    except ValueError as error:
        raise CliError(f"--to: {error}", USAGE) from None
    console = Console(stderr=True, highlight=False)
    with publisher, _progress(console, source.num_events) as (progress, task):
        done = 0
        for batch in source:
            publisher.send(batch)
            if publisher.num_events - done >= FLUSH_EVENTS or config.stream.speed is not None:
                publisher.flush()
                done = publisher.num_events
            progress.update(task, completed=publisher.num_events)
    console.print(f"published {publisher.num_events:,} events in {publisher.describe()}")
    command = _how_to_read({**publisher.how_to_read(), "time_unit": source.unit}, url, options)
    console.print(f"read them by: {command}", soft_wrap=True, markup=False)


def _how_to_read(settings: Mapping[str, str], url: str, options: Mapping[str, Any]) -> str:
    """Return the command that reads what was published."""
    flags = [part for key, value in settings.items() for part in (flag_of(f"stream.{key}"), value)]
    for key, value in options.items():
        text = value if isinstance(value, str) else json.dumps(value)
        flags += [flag_of(f"{scheme_of(url)}.options"), f"{key}={text}"]
    return shlex.join(["tgflow", "run", "--stream", url, *flags, "--max-time-jump", "none"])


@contextmanager
def _progress(console: Console, total: int | None) -> Iterator[tuple[Progress, TaskID]]:
    count = TextColumn("{task.completed:,.0f} events")
    columns = (TextColumn("publishing"), BarColumn(), count, TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield progress, progress.add_task("publishing", total=total)
