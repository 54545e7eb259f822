"""Transports by URL scheme: event sources other than files, loaded on first use."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tgflow.base.secret import check_url
from tgflow.streams.rows.row_batch import PartitionedSource
from tgflow.streams.rows.schema import IdKind

SCHEMES = {"kafka": "tgflow.streams.kafka"}
"""Module of each URL scheme, which exports `TRANSPORT`. A new transport is one such line."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


@dataclass(frozen=True, slots=True)
class Transport:
    """A transport for a URL scheme.

    Args:
        config: The dataclass of its settings; its field `url` is the address of a stream.
        open: Returns the source for a `config`. Raises `ImportError` if a required package is not
            installed.
        ends: Whether its streams end; in endless ones, times may be at most a day after the clock
            by default, timeouts of order are set, and late events are dead letters.
        id_kind: Returns the kind of the ids in the first records for a `config`, and the reason;
            None: the kind is a setting.
        topic: Returns a writer of records to an address, with `send(value, key)`, `flush()` and
            `close()`, which raise `OSError` if records are rejected. It takes the
            address and the section of the scheme's settings. None if the transport is read-only.
    """

    config: type[Any]
    open: Callable[[Any], PartitionedSource]
    ends: bool = False
    topic: Callable[[str, Any], Any] | None = None
    id_kind: Callable[[Any], tuple[IdKind, str]] | None = None


def scheme_of(address: str) -> str | None:
    """Return the URL scheme of an address in lower case, None for paths of files."""
    match = _SCHEME.match(address)
    return match.group(1).lower() if match else None


def find_transport(address: str) -> Transport | None:
    """Return the transport of the stream at `address`, None for files.

    Raises:
        ValueError: If the scheme is unknown, or the address holds credentials.
    """
    check_url(address)
    if (scheme := scheme_of(address)) is None:
        return None
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        text = f"{address!r} has an unknown scheme; streams are {known} and paths: mount an object "
        raise ValueError(f"{text}store, or copy its files here first")
    transport: Transport = import_module(SCHEMES[scheme]).TRANSPORT
    return transport
