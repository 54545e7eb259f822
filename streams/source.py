"""Sources of events, and whatever else can be read as one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from tgflow.graph.event_stream import EventStream
from tgflow.graph.events import EventBatch
from tgflow.graph.ids import NodeIds


@runtime_checkable
class Source(Protocol):
    """Batches of events in arrival order, of any size, with non-decreasing times.

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
        """The map from the stream's node ids to dense ones; it grows during the read."""
        ...

    @property
    def unit(self) -> str:
        """Unit of a tick, one of `tgflow.base.units.UNITS`."""
        ...

    @property
    def num_events(self) -> int | None:
        """Expected number of events, or None if unknown."""
        ...

    def __iter__(self) -> Iterator[EventBatch]:
        """Return the events from the start."""
        ...


def is_table(data: Any) -> bool:
    """Return whether `open_stream` opens data: paths, a frame, Arrow, columns, rows or PyG's."""
    if isinstance(data, EventBatch):
        return False
    if isinstance(data, tuple) and len(data) >= 3:  # columns, unlike a tuple of batches
        return not any(isinstance(column, EventBatch) for column in data)
    if isinstance(data, list | tuple):
        return bool(data) and not isinstance(data[0], EventBatch)
    if isinstance(data, str | os.PathLike | Mapping) or not isinstance(data, Iterable):
        return True  # what has no rows is refused by `open_stream`
    marks = ("__arrow_c_stream__", "collect_schema", "src")
    return any(hasattr(data, name) for name in marks)


def as_source(data: Any, **options: Any) -> EventStream:
    """Return anything that has events as one stream.

    Args:
        data: Whatever `open_stream` opens, which it does with `options`; a source that is open
            already; batches of events, or a single one.
        **options: Arguments of `open_stream`; other data ignores them.
    """
    if isinstance(data, EventStream):
        return data
    if is_table(data):
        from tgflow.streams.open import open_stream  # needs all file formats

        data = open_stream(data, **options)
    return EventStream([data] if isinstance(data, EventBatch) else data)
