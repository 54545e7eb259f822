"""What `tgflow playback --to kafka://...` does: events to a topic, when they are due."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tgflow.cli.errors import USAGE, CliError
from tgflow.cli.playing import open_played
from tgflow.config import Config, flag_of
from tgflow.streams.kafka.publish import PartitionBy, Publisher

FLUSH_EVENTS = 50_000
"""Events after which it is made sure that the broker has them."""


def publish(config: Config, url: str, records: int | None, partition_by: str) -> None:
    """Write the stream of `config` to a topic.

    Args:
        config: The stream, its speed, the codec, and the options of kafka-python.
        url: The topic.
        records: Events in a record, at most; None for the codec's default.
        partition_by: "src" or "round_robin".

    Raises:
        CliError: If an option is none, or they do not fit together.
        PublishError: If the broker does not take what is sent.
    """
    source = open_played(config)
    console = Console(stderr=True, highlight=False)
    try:
        publisher = Publisher(
            url,
            source.ids,
            codec=config.stream.codec,
            records=records,
            partition_by=_partition_by(partition_by),
            options=config.kafka.options,
        )
    except ValueError as error:
        raise CliError(f"--to: {error}", USAGE) from None
    with publisher, _progress(console, source.num_events) as (progress, task):
        done = 0
        for batch in source:
            publisher.send(batch)
            if publisher.num_events - done >= FLUSH_EVENTS or config.stream.speed is not None:
                publisher.flush()
                done = publisher.num_events
            progress.update(task, completed=publisher.num_events)
    topic = publisher.topic
    console.print(
        f"published {publisher.num_events:,} events in {publisher.num_records:,} records "
        f"to {topic.num_partitions} partitions of {topic.name}"
    )
    settings = {**publisher.how_to_read(), "time_unit": source.unit}
    flags = [part for key, value in settings.items() for part in (flag_of(f"stream.{key}"), value)]
    for key, value in config.kafka.options.items():
        flags += [
            "--kafka-option",
            f"{key}={value if isinstance(value, str) else json.dumps(value)}",
        ]
    command = shlex.join(["tgflow", "run", "--stream", url, *flags, "--max-time-jump", "none"])
    console.print(f"read them by: {command}", soft_wrap=True, markup=False)


def _partition_by(text: str) -> PartitionBy:
    for known in get_args(PartitionBy):
        if text == known:
            chosen: PartitionBy = known
            return chosen
    known = " or ".join(get_args(PartitionBy))
    raise CliError(f"--partition-by must be {known}, got {text!r}", USAGE)


@contextmanager
def _progress(console: Console, total: int | None) -> Iterator[tuple[Progress, TaskID]]:
    count = TextColumn("{task.completed:,.0f} events")
    columns = (TextColumn("publishing"), BarColumn(), count, TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield progress, progress.add_task("publishing", total=total)
