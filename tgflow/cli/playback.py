"""`tgflow playback`: play a file as a stream, or convert it."""

from __future__ import annotations

import csv
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from tgflow.cli.errors import USAGE, CliError
from tgflow.cli.options import with_config
from tgflow.run.config import Config, StreamConfig, flag_of
from tgflow.run.config.schema import GraphConfig
from tgflow.train.tasks.config import TaskConfig

if TYPE_CHECKING:
    from tgflow.graph.events import EventBatch
    from tgflow.streams.transports import Transport
    from tgflow.testing.broker import MockBroker

SETTINGS = ("stream", "kafka.options", "kafka.connect_timeout")
_RECORDS = "Output to Kafka"
DEMO, DEMO_TOPIC = "kafka://demo", "edges"
"""Address of a broker of the command's own, and its topic."""
FLUSH_EVENTS = 50_000
"""Events between two flushes of a publisher."""


@with_config(SETTINGS, positional="stream.path")
def playback(
    config: Config,
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="File to write (.csv, .jsonl, .parquet, .arrow, ...), kafka://HOST:PORT/TOPIC, "
            "kafka://demo for a broker of its own until Ctrl-C, or - for CSV on stdout.",
            rich_help_panel="Output",
        ),
    ] = "-",
    records: Annotated[
        int | None,
        typer.Option(
            help="Maximum events per record; default: 1000 with --codec arrow, else 1.",
            min=1,
            rich_help_panel=_RECORDS,
        ),
    ] = None,
    partition_by: Annotated[
        str,
        typer.Option(help="src: by source node; round_robin: in turn.", rich_help_panel=_RECORDS),
    ] = "src",
) -> None:
    """Play a file of events as a stream, at full speed or at a multiple of real time.

    Writes CSV lines to stdout as events become due, for piping, or a file of another format, or
    records to a Kafka topic, encoded by --codec.

    [bold]Examples[/bold]

      tgflow playback events.csv.gz --speed 3600 | head
      tgflow playback events.csv.gz --to events.parquet
      tgflow playback events.csv.gz --to kafka://demo
      tgflow playback events.csv.gz --to kafka://localhost:9092/edges --codec arrow --speed 3600
      tgflow playback wikipedia.csv --format jodie --limit 1000 --to small.jsonl
    """
    from tgflow.streams.transports import find_transport, scheme_of
    from tgflow.streams.write import write_events

    console = Console(stderr=True, highlight=False)
    timeout = config.kafka.connect_timeout
    with _naming_the_output():  # before the stream is opened, so that credentials are found first
        transport = find_transport(to)
    played = _PlayedSource(config.stream, config.graph, config.task)
    if to == DEMO:
        with _demo_broker() as broker:
            options = {**config.kafka.options, "api_version": [*broker.api_version]}
            broker.create(DEMO_TOPIC)
            transport, to = find_transport(broker.url(DEMO_TOPIC)), broker.url(DEMO_TOPIC)
            assert transport is not None
            _publish(played, transport, to, options, timeout, records, partition_by, console)
            console.print("the broker runs until Ctrl-C")
            broker.wait()
        return
    if transport is not None:
        options = getattr(config.section_of(scheme_of(to)), "options", {})
        _publish(played, transport, to, options, timeout, records, partition_by, console)
    elif to == "-":
        _write_to_stdout(played)
    else:
        with _naming_the_output():
            count = write_events(Path(to), played)
        console.print(f"wrote {count:,} events to {to}")


@contextmanager
def _naming_the_output() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise CliError(f"--to: {error}", USAGE) from None


@contextmanager
def _demo_broker() -> Iterator[MockBroker]:
    """Run a broker in a child process; SIGINT and SIGTERM end the context quietly."""
    from tgflow.testing.broker import MockBroker

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        with MockBroker() as broker:
            yield broker
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


class _PlayedSource:
    """The source of a stream of files, with its limit and speed; itself a source."""

    def __init__(self, stream: StreamConfig, graph: GraphConfig, task: TaskConfig) -> None:
        from tgflow.cli import inputs as assemble
        from tgflow.streams.decorators import num_played

        self.settings = stream
        self._source = assemble.open_source(stream, graph, task)
        self.x_dim, self.ids, self.unit = self._source.x_dim, self._source.ids, self._source.unit
        self.num_events = num_played(self._source, stream.limit)

    def __iter__(self) -> Iterator[EventBatch]:
        from tgflow.streams.decorators import playback

        return playback(self._source, self.settings.speed, limit=self.settings.limit)


def _write_to_stdout(source: _PlayedSource) -> None:
    """Write CSV with a header, flushed after each batch; a closed pipe ends it silently."""
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


def _publish(
    source: _PlayedSource,
    transport: Transport,
    url: str,
    options: Mapping[str, Any],
    connect_timeout: float,
    records: int | None,
    partition_by: str,
    console: Console,
) -> None:
    """Write a stream to an address of a transport, and print the command that reads it."""
    from tgflow.streams.transports import scheme_of

    scheme = scheme_of(url)
    if transport.publish is None:
        raise CliError(f"--to: {scheme}:// can be read, but not written to", USAGE)
    with _naming_the_output():
        publisher = transport.publish(
            url,
            source.ids,
            codec=source.settings.codec,
            records=records,
            partition_by=partition_by,
            options=options,
            connect_timeout=connect_timeout,
        )

    def print_command() -> None:
        settings = {**publisher.how_to_read(), "time_unit": source.unit}
        flags = []
        for key, value in settings.items():
            flags += [flag_of(f"stream.{key}"), value]
        for key, value in options.items():
            text = value if isinstance(value, str) else json.dumps(value)
            flags += [flag_of(f"{scheme}.options"), f"{key}={text}"]
        words = ["tgflow", "run", "--stream", url, *flags]
        console.print(f"read them with: {shlex.join(words)}", soft_wrap=True, markup=False)

    is_paced = source.settings.speed is not None
    with publisher, Progress(console=console, transient=True) as progress:
        task, done = progress.add_task("publishing", total=source.num_events), 0
        for batch in source:
            publisher.send(batch)
            if publisher.num_events - done >= FLUSH_EVENTS or is_paced:
                publisher.flush()
                if is_paced and not done:  # they can be read while others are published
                    print_command()
                done = publisher.num_events
            progress.update(task, completed=publisher.num_events)
    console.print(f"published {publisher.num_events:,} events in {publisher.describe()}")
    if not is_paced:
        print_command()
