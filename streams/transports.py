"""Transports by URL scheme: where streams come from besides files, found when first asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tgflow.streams.rows.row_batch import PartitionedSource

SCHEMES = {"kafka": "tgflow.streams.kafka"}
"""Of each URL scheme the module whose `TRANSPORT` serves it. A new transport is one such line."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


@dataclass(frozen=True, slots=True)
class Transport:
    """What a URL scheme stands for.

    Args:
        config: The dataclass of its settings; its field `url` is the address of a stream.
        open: Returns the source that a `config` describes. Raises `ImportError` if a package that
            it needs is not installed.
        ends: Whether its streams end; of those that do not the time may jump far ahead only if the
            user says so, and late events are dead letters by default.
        publish: Returns a context manager that writes events to an address, and flushes and closes
            at its end: `send(events)` and `flush()` raise `OSError` if events are not taken,
            `num_events` were written, `describe()` returns what and where, such as "40 records to
            3 partitions of edges", and `how_to_read()` the settings of a stream that reads them. It
            takes the address, the `NodeIds` of the events, and as keywords codec, records,
            partition_by and options. Raises `ValueError` if these do not fit. None if the transport
            cannot be written to.
        topic: Returns what takes records of any kind at an address, with `send(value, partition,
            key)`, `flush()` and `close()`, which raise `OSError` if records are not taken. It takes
            the address and the options of the scheme's section. None if the transport cannot be
            written to.
    """

    config: type[Any]
    open: Callable[[Any], PartitionedSource]
    ends: bool = False
    publish: Callable[..., Any] | None = None
    topic: Callable[[str, Any], Any] | None = None


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
