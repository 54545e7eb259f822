"""A graph that grows along one seeded stream, stopping at the sizes that are measured."""

from __future__ import annotations

from collections.abc import Sequence

from tgflow.bench.made import PowerLaw
from tgflow.bench.turns import seconds_of
from tgflow.cuda.device import Device
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph

POWER_LAW = "power law"
"""What rows call the stream."""
BULK = 1_000_000
"""Events a batch while it grows."""
MOST_NODES = 2_500_000
"""As many as a large site has users: 20 entries each where the graph holds 50 M."""


class Grown:
    """A graph of the first events of a power-law stream.

    Args:
        sizes: Entries at which it will stop; its nodes number a twentieth of the largest.
        device: Where it lies.
        budget: Bytes of its device tier; None: it has no other.
    """

    def __init__(
        self, sizes: Sequence[int], device: str | Device = "cpu", budget: int | None = None
    ) -> None:
        self.stream = PowerLaw(max(min(max(sizes) // 20, MOST_NODES), 2))
        self.graph = TemporalGraph(device=device, device_budget=budget)
        self.device = self.graph.device.type

    @property
    def num_events(self) -> int:
        """Events in the graph."""
        return self.graph.num_events

    @property
    def num_nodes(self) -> int:
        """Nodes of the stream; some may not have an event yet."""
        return self.stream.num_nodes

    def grow_to(self, entries: int) -> list[float]:
        """Add events until there are `entries`, two an event; returns ns per event, by batch."""
        stop, costs = entries // 2, []
        while self.num_events < stop:
            events = self.read(min(BULK, stop - self.num_events))
            costs.append(self.append(events) / len(events) * 1e9)
        return costs

    def read(self, size: int) -> EventBatch:
        """Return the next events of the stream, which are not in the graph."""
        return self.stream.read(self.num_events, self.num_events + size)

    def append(self, events: EventBatch) -> float:
        """Add what `read` has returned; returns the seconds it took."""
        return seconds_of(lambda: self.graph.append(events), self.device)
