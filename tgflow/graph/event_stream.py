"""Streams of events as their readers see them, whatever the source declares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tgflow.graph.events import EventBatch
from tgflow.graph.ids import NodeIds


class EventStream:
    """Batches of events, and what is known about them; base class of streams over streams.

    The properties are those of `source`: batches of events in order, or another stream, such as a
    `tgflow.streams.Source`. Those that it lacks are None or empty.
    """

    def __init__(self, source: Iterable[EventBatch] = ()) -> None:
        self.source = source

    def __iter__(self) -> Iterator[EventBatch]:
        return iter(self.source)

    @property
    def unit(self) -> str | None:
        """Unit of a tick."""
        return getattr(self.source, "unit", None)

    @property
    def time_unit(self) -> str | None:
        """Unit of numeric times in files."""
        return getattr(self.source, "time_unit", None)

    @property
    def x_dim(self) -> int | None:
        """Width of the edge features."""
        return getattr(self.source, "x_dim", None)

    @property
    def ids(self) -> NodeIds | None:
        """The map from the stream's node ids to dense ones."""
        return getattr(self.source, "ids", None)

    @property
    def num_events(self) -> int | None:
        """Expected number of events."""
        return getattr(self.source, "num_events", None)

    @property
    def progress(self) -> float | None:
        """Share of the source that has been read, 0 to 1."""
        return getattr(self.source, "progress", None)

    @property
    def origin(self) -> Mapping[str, Any]:
        """Path and options of `open_stream`."""
        return getattr(self.source, "origin", {})

    @property
    def features(self) -> Mapping[str, int]:
        """Widths of the feature columns by name, in order, categorical ones last."""
        return getattr(self.source, "features", {})

    @property
    def classes(self) -> Mapping[str, Sequence[str]]:
        """Texts of the classes 0, 1, ... so far, by column."""
        return getattr(self.source, "classes", {})
