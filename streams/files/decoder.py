"""Base class of the file decoders, and the anchors of positions."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tgflow.streams.errors import SourceMismatch, SourceTruncated
from tgflow.streams.rows.row_batch import Position, RowBatch
from tgflow.streams.rows.schema import Columns
from tgflow.streams.rows.validate import RowSchema

SAMPLES = 100
ANCHOR_BYTES = 1 << 16


class Decoder(ABC):
    """Base class of decoders; reads one file or table."""

    bipartite = False
    """Whether sources and destinations are numbered separately."""
    is_growing = False
    """Whether lines may be appended during the read."""

    def __init__(self, name: str, size: int, num_events: int | None, first_place: str) -> None:
        self.name = name
        self.size = size
        self.num_events = num_events
        self.first_place = first_place

    @abstractmethod
    def names(self) -> Sequence[str] | None:
        """Return the column names, None if there are neither rows nor names."""

    @abstractmethod
    def samples(self, columns: Columns) -> Sequence[Mapping[str, Any]]:
        """Return a sample of the first rows, by column name, without unreadable rows."""

    @abstractmethod
    def read(self, schema: RowSchema, start: Position | None) -> Iterator[RowBatch]:
        """Return the rows in order, from `start` on, a bounded number of them at a time.

        Positions lack the file; the reader adds it.
        """

    @abstractmethod
    def progress(self) -> float:
        """Return the share that the latest `read` has consumed, 0 to 1."""

    def default_features(self) -> Sequence[str]:
        """Return the default feature columns, for streams that declare none."""
        return ()

    def notes(self) -> Sequence[str]:
        """Return notes on assumptions made about the file, one sentence each."""
        return ()


def digest(before: bytes) -> str:
    """Return the anchor of a position: a digest of the last 64 KiB of `before`."""
    return hashlib.sha256(before[-ANCHOR_BYTES:]).hexdigest()


def check_digest(name: str, before: bytes, position: Mapping[str, Any], what: str) -> None:
    """Raise `SourceMismatch` if `before` differs from the data before `position` when saved."""
    if digest(before) != position["sha256"]:
        text = f"the data before {what} differs from what was read; it is another file: "
        raise SourceMismatch(name, "schema", f"{text}put the old one back, or start afresh")


def check_size(name: str, size: int, position: Mapping[str, Any]) -> None:
    """Raise `SourceTruncated` if the file has become shorter."""
    if size < position["size"]:
        text = f"it has {size} bytes, but had {position['size']} when it was read; put it back"
        raise SourceTruncated(name, "schema", text)


def tail(path: Path, end: int) -> bytes:
    """Return the last 64 KiB of a file before byte `end`."""
    with path.open("rb") as file:
        file.seek(max(0, end - ANCHOR_BYTES))
        return file.read(min(end, ANCHOR_BYTES))
