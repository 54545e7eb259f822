"""What ingestion reads from: partitions of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Protocol, runtime_checkable

from tgflow.ids import NodeIds
from tgflow.streams.rows.row_batch import PolledRows, Position
from tgflow.streams.rows.schema import IdKind


class PartitionedSource(Protocol):
    """Partitions of rows, each in an order of its own that never changes.

    Files, one after another, are one partition; a Kafka topic has its own. Not thread-safe.
    """

    name: str
    """What messages and reports call it."""
    unit: str
    """What a tick is, one of `tgflow.units.UNITS`."""
    x_dim: int
    """Width of the edge features, 0 without them."""
    id_kind: IdKind
    """What the node ids are."""
    ids: NodeIds
    """An empty map for the ids (bipartite if the source is); whoever orders the events fills it."""
    num_events: int | None
    """How many rows there will be, or None if that is not known."""

    def start(self, positions: Mapping[int, Position]) -> None:
        """Start, or resume, at `positions`; a partition without one is read from its beginning.

        Raises:
            SourceExpired: If a partition no longer holds what comes next.
            SourceTruncated: If a partition ends before its position.
            SourceMismatch: If what stood before a position is no longer what it was.
            SourceUnavailable: If it cannot be reached in time.
        """
        ...

    def partitions(self) -> Sequence[int]:
        """Return the partitions there are, known after `start`."""
        ...

    def look_for_partitions(self) -> Sequence[int]:
        """Return the partitions that came since, and read them from their beginning from now on."""
        ...

    def poll(self, wanted: Set[int], timeout: float) -> list[PolledRows]:
        """Return what has arrived in the partitions `wanted`, waiting up to `timeout` seconds.

        The others are paused: they keep what they have. An empty list means that nothing came.

        Raises:
            StreamError: If the source cannot continue, one of its kinds in `tgflow.streams.errors`.
        """
        ...

    def ended(self) -> Set[int]:
        """Return the partitions of which nothing more will ever come."""
        ...

    def lag(self) -> Mapping[int, int]:
        """Return how many records each partition holds that were not polled yet, where known."""
        ...

    def progress(self) -> float:
        """Return which share of it has been polled, 0 to 1; 0 where that is not known."""
        ...

    def counters(self) -> Mapping[str, float]:
        """Return what it has met so far, such as {"rebuilds": 2, "outage_seconds": 3.5}."""
        ...

    def committed(self, positions: Mapping[int, Position]) -> None:
        """Hear that a checkpoint holds all before `positions`; never raises."""
        ...

    def close(self) -> None:
        """Give back what it holds; never waits for more than a few seconds."""
        ...


@runtime_checkable
class Stoppable(Protocol):
    """A source that may wait long, as for a broker, and asks whether it should."""

    stop: Callable[[], bool]
    """Asked while it waits; once it returns True, `start` returns with nothing started."""
