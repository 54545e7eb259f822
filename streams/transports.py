"""Transports by URL scheme: where streams come from besides files, found when first asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import TracebackType
from typing import Any, Protocol, Self

from tgflow.events import EventBatch
from tgflow.streams.ingest.dead_letters import DeadLetterSink
from tgflow.streams.rows.partitioned import PartitionedSource

SCHEMES = {"kafka": "tgflow.streams.kafka"}
"""Of each URL scheme the module whose `TRANSPORT` serves it. A new transport is one such line."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


class RecordTopic(Protocol):
    """Takes records at an address of a transport."""

    def send(self, value: bytes, partition: int | None, key: bytes | None = None) -> None:
        """Write a record soon; raises `OSError` if an earlier one was not taken."""
        ...

    def flush(self) -> None:
        """Return once all records are taken; raises `OSError` if they are not."""
        ...

    def close(self) -> None:
        """Give the connections back."""
        ...


class EventPublisher(Protocol):
    """Writes events to an address of a transport; a context manager, which flushes and closes."""

    @property
    def num_events(self) -> int:
        """Events written so far."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None: ...

    def send(self, events: EventBatch) -> None:
        """Write events soon, in their order.

        Raises:
            OSError: If earlier ones were not taken.
        """
        ...

    def flush(self) -> None:
        """Return once all events are written.

        Raises:
            OSError: If they are not taken.
        """
        ...

    def describe(self) -> str:
        """Return what was written and where, such as "40 records to 3 partitions of edges"."""
        ...

    def how_to_read(self) -> dict[str, str]:
        """Return the settings of a stream by which the events are read."""
        ...


@dataclass(frozen=True, slots=True)
class Transport:
    """What a URL scheme stands for.

    Args:
        config: The dataclass of its settings; its field `url` is the address of a stream.
        open: Returns the source that a `config` describes. Raises `ImportError` if a package that
            it needs is not installed.
        ends: Whether its streams end; of those that do not the time may jump far ahead only if the
            user says so, and late events are dead letters by default.
        dead_letters: Returns a sink that writes dead letters to files, and to an address of the
            scheme as well; takes that sink, the address and the options of the scheme's section.
            None if the transport takes no dead letters.
        publish: Returns what writes events to an address; takes that, the `NodeIds` of the events,
            and as keywords codec, records, partition_by and options. Raises `ValueError` if these
            do not fit. None if the transport cannot be written to.
        topic: Returns what takes records of any kind at an address, of that and the options of the
            scheme's section. None if the transport cannot be written to.
    """

    config: type[Any]
    open: Callable[[Any], PartitionedSource]
    ends: bool = False
    dead_letters: Callable[[DeadLetterSink, str, Any], DeadLetterSink] | None = None
    publish: Callable[..., EventPublisher] | None = None
    topic: Callable[[str, Any], RecordTopic] | None = None


def scheme_of(address: str) -> str | None:
    """Return the URL scheme of an address in lower case, None if it is a path."""
    match = _SCHEME.match(address)
    return match.group(1).lower() if match else None


def find_transport(address: str) -> Transport | None:
    """Return what reads the stream at `address`, None if it is a path.

    Raises:
        ValueError: If the scheme is unknown; the message lists those there are.
    """
    scheme = scheme_of(address)
    if scheme is None:
        return None
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise ValueError(f"{address!r} has an unknown scheme; streams are paths or {known}")
    transport: Transport = import_module(SCHEMES[scheme]).TRANSPORT
    return transport
