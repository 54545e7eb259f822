"""Transports by URL scheme: where streams come from besides files, found when first asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tgflow.streams.ingest.dead_letters import DeadLetterSink
from tgflow.streams.rows.partitioned import PartitionedSource

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
        dead_letters: Returns a sink that writes dead letters to files, and to an address of the
            scheme as well; takes that sink, the address and the `config`'s options. None if the
            transport cannot be written to.
    """

    config: type[Any]
    open: Callable[[Any], PartitionedSource]
    ends: bool = False
    dead_letters: Callable[[DeadLetterSink, str, Any], DeadLetterSink] | None = None


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
