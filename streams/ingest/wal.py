"""Where ingestion writes what it has taken, before it hands it on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import pyarrow as pa

from tgflow.durable.errors import DiskFull
from tgflow.durable.segments import LogPosition

RETRY_SECONDS = 0.1


class WriteAheadLog(Protocol):
    """What is needed of a `DurableLog`."""

    @property
    def end(self) -> LogPosition:
        """The place after the last frame."""
        ...

    def append(self, rows: pa.RecordBatch, footer: Mapping[str, Any]) -> LogPosition:
        """Add a frame and return the place after it."""
        ...

    def sync(self) -> None:
        """Return once all frames are on the disk."""
        ...

    def read(
        self, start: LogPosition | None = None
    ) -> Iterator[tuple[pa.RecordBatch, dict[str, Any], LogPosition]]:
        """Yield rows, footer and the place after it of each frame from `start` on."""
        ...


def append(
    log: WriteAheadLog,
    rows: pa.RecordBatch,
    footer: Mapping[str, Any],
    give_up: Callable[[float], bool],
) -> LogPosition:
    """Add a frame and return the place after it; while the disk is full, wait for room.

    Args:
        log: The log.
        rows: What was taken.
        footer: What was known after it.
        give_up: Called with the seconds waited so far; returns whether to wait no longer.

    Raises:
        DiskFull: If there is still no room.
        OSError: If the disk refuses.
    """
    seconds = 0.0
    while True:
        try:
            return log.append(rows, footer)
        except DiskFull:
            if give_up(seconds):
                raise
            time.sleep(RETRY_SECONDS)
            seconds += RETRY_SECONDS
