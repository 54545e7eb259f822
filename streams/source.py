"""A source: an ordered stream of event batches, from files or tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Protocol, runtime_checkable

from tgflow.describe import described
from tgflow.events import EventBatch, concat
from tgflow.ids import NodeIds
from tgflow.streams.files.reader import FileSource, Reader
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.rows.row_batch import to_batch
from tgflow.units import INT64_MAX


@runtime_checkable
class Source(Protocol):
    """Batches of events in arrival order, of any size, times never decreasing.

    Example:
        >>> source = tg.open_stream({"src": ["ann"], "dst": ["bob"], "t": [5]}, time_unit="s")
        >>> isinstance(source, tg.streams.Source), source.unit, source.x_dim
        (True, 's', 0)
    """

    @property
    def x_dim(self) -> int:
        """Width of the edge features, 0 without them."""
        ...

    @property
    def ids(self) -> NodeIds:
        """The map from the stream's node ids to dense ones; it grows while the source is read."""
        ...

    @property
    def unit(self) -> str:
        """What a tick is, one of `tgflow.units.UNITS`."""
        ...

    @property
    def num_events(self) -> int | None:
        """How many events there will be, or None if that is not known."""
        ...

    def __iter__(self) -> Iterator[EventBatch]:
        """Return the events from the start."""
        ...


@described
class EventSource:
    """The events of files or tables, one after another, up to the first row that is none.

    It is ordered ingestion with lateness an error and no bad rows allowed.

    Args:
        name: What messages call it.
        reader: What reads the files.
        ids: The map that node ids go through.
        sort: Whether to read everything first and sort it by time, ties in file order.
    """

    def __init__(self, name: str, reader: Reader, ids: NodeIds, sort: bool) -> None:
        self.ids = ids
        self.unit = reader.time.tick
        self.time_unit = reader.time.unit
        """What numbers in the files count."""
        self.notes: Sequence[str] = reader.notes
        """What the first rows have shown that nobody said, in sentences."""
        self.num_events = reader.num_events
        self.x_dim = sum(reader.widths)
        self.feature_names: Sequence[str] = reader.feature_names
        """What the columns of the features are called."""
        self.progress = 0.0
        """Which share of the data the latest iteration has read, 0 to 1."""
        self.origin: dict[str, Any] = {}
        """Path and options of `open_stream`; empty for a table in memory."""
        self._name = name
        self._reader = reader
        self._order = OrderConfig(
            late="error",
            allowed_lateness=INT64_MAX if sort else 0,
            buffer_events=INT64_MAX,
            buffer_bytes=INT64_MAX,
        )

    def first(self, count: int) -> EventBatch:
        """Return the first `count` events as the files have them, leaving out rows that are none.

        The ids of nodes are dense, and no others than these events have.

        Raises:
            StreamError: If a file cannot be read.
        """
        batches, ids, left = [], NodeIds(self.ids.bipartite), count
        with closing(self._reader.read()) as read:
            for rows, _ in read:
                batches.append(to_batch(rows.events.take(slice(0, left)), ids))
                left -= len(batches[-1])
                if not left:
                    break
        return concat(batches)

    def _facts(self) -> dict[str, object]:
        return {
            "name": self._name,
            "num_events": self.num_events,
            "unit": self.unit,
            "x_dim": self.x_dim,
            "ids": self.ids,
        }

    @property
    def label_classes(self) -> Sequence[str]:
        """What the labels 0, 1, ... were, where they are texts, as far as has been read."""
        classes = self._reader.classes
        return () if classes is None else tuple(classes.names)

    def __iter__(self) -> Iterator[EventBatch]:
        """Return the events from the start. They are read in a thread, a few blocks ahead.

        Raises:
            StreamError: At the first row that is no event; the events before it come first.
        """
        self.progress = 0.0
        source = FileSource(self._name, self._reader, self.ids)
        ingest = Ingest(source, self._order, strict=True)
        try:
            for events in ingest:
                self.progress = source.progress()
                yield events
            self.progress = 1.0
        finally:
            ingest.close()
