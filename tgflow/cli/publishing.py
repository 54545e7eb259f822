"""What `tgflow playback --to URL` does: events to a transport, when they are due."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tgflow.cli.errors import USAGE, CliError
from tgflow.cli.playing import open_played
from tgflow.config import Config, flag_of
from tgflow.runtime.transports import section_of
from tgflow.streams.transports import Transport, scheme_of

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
