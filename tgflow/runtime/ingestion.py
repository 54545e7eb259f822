"""Ingestion of a run from the command line: what is read, in which order, and what is refused."""

from __future__ import annotations

from dataclasses import replace

from tgflow.config import Config
from tgflow.durable.log import DurableLog
from tgflow.runtime.directory import RunDirectory
from tgflow.runtime.restore import Start
from tgflow.runtime.stream import FlowControl
from tgflow.runtime.transports import section_of
from tgflow.streams.ingest.accounting import RowAccounting
from tgflow.streams.ingest.breaker import CircuitBreaker
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.ingest.dead_letters import DeadLetterFiles, DeadLetterSink
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.rows.partitioned import PartitionedSource, Stoppable
from tgflow.streams.transports import find_transport
from tgflow.units import INT64_MAX


def make_ingest(
    config: Config,
    source: PartitionedSource,
    start: Start,
    position: int,
    dead_letters: DeadLetterSink,
    log: DurableLog | None,
    flow: FlowControl,
) -> Ingest:
    """Return ingestion, which begins, or goes on where it was saved.

    Args:
        config: The settings.
        source: Where rows come from, not started.
        start: What a checkpoint says of ingestion.
        position: Events that the trainer has.
        dead_letters: Where rows go that are refused.
        log: Gets what was read first; None: nothing does.
        flow: Stops it.
    """
    if start.ids is not None:
        source.ids = start.ids
    if isinstance(source, Stoppable):
        source.stop = lambda: flow.stopped
    return Ingest(
        source,
        order_config(config),
        letters=dead_letters,
        accounting=RowAccounting(),
        breaker=CircuitBreaker(source.name, config.checks.max_bad_ratio),
        log=log,
        state=start.state,
        skip_to=position,
        keep_event_ids=keeps_event_ids(config),
        stop=lambda: flow.stopped,
    )


def keeps_event_ids(config: Config) -> bool:
    """Whether rows of scores name the ids that the stream gives its events."""
    return config.scores.to is not None and config.stream.event_id is not None


def order_config(config: Config) -> OrderConfig:
    """Return how events are put in order.

    To sort files is to let every event come late, and so to hold all back until the end.
    """
    if not config.stream.sort:
        return config.order
    return replace(
        config.order,
        allowed_lateness=INT64_MAX,
        late="dead_letter",
        buffer_events=INT64_MAX,
        buffer_bytes=INT64_MAX,
    )


def open_dead_letters(directory: RunDirectory) -> DeadLetterSink:
    """Return where dead letters go: to files, and to a topic if one is named."""
    address = directory.config.stream.path
    files, transport = DeadLetterFiles(directory.path / "dead-letters"), find_transport(address)
    section = section_of(directory.config, address)
    topic = getattr(section, "dead_letter_topic", None)
    if topic is None or transport is None or transport.dead_letters is None:
        return files
    return transport.dead_letters(files, f"{address.rpartition('/')[0]}/{topic}", section.options)
