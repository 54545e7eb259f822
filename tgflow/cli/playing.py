"""What `tgflow playback` does: events from a source to stdout or a file, when they are due."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from tgflow.cli import assemble
from tgflow.cli.errors import USAGE, CliError
from tgflow.config import Config
from tgflow.events import EventBatch
from tgflow.ids import NodeIds
from tgflow.streams.rows.batch import columns_of
from tgflow.streams.write import write_events


@dataclass(slots=True)
class _Played:
    """A source's events when they are due, up to a limit; itself a source."""

    batches: Iterable[EventBatch]
    num_events: int | None
    x_dim: int
    ids: NodeIds
    unit: str

    def __iter__(self) -> Iterator[EventBatch]:
        return iter(self.batches)


def play(config: Config, to: Path | None) -> None:
    """Write the stream of `config` to the file `to`, or without one as CSV to stdout."""
    source = assemble.open_source(config)
    feed = assemble.Feed(source, config.stream.limit, config.stream.speed)
    played = _Played(feed, feed.num_events, source.x_dim, source.ids, source.unit)
    if to is None:
        _to_stdout(played)
        return
    try:
        count = write_events(to, played)
    except ValueError as error:
        raise CliError(f"--to: {error}", USAGE) from None
    Console(stderr=True, highlight=False).print(f"wrote {count:,} events to {to}")


def _to_stdout(source: _Played) -> None:
    """Write CSV with a header, flushed after each batch; a closed pipe ends it in silence."""
    out = csv.writer(sys.stdout, lineterminator="\n")
    try:
        for number, batch in enumerate(source):
            if number == 0:
                out.writerow(_header(batch))
            out.writerows(_rows(batch, source.ids))
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _header(batch: EventBatch) -> list[str]:
    label = [] if batch.label is None else ["label"]
    return ["src", "dst", "t", *label, *(f"f{i}" for i in range(batch.x_dim))]


def _rows(batch: EventBatch, ids: NodeIds) -> Iterator[list[object]]:
    columns = [column.to_pylist() for column in columns_of(batch, ids).values()]
    x = [[]] * len(batch) if batch.x is None else batch.x.tolist()
    for i, row in enumerate(zip(*columns, strict=True)):
        yield [*row, *x[i]]
