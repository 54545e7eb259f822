"""Baseline: a static CSR, optimal for queries and rebuilt by every insert."""

from torch import Tensor

from tgflow import EventBatch, _core
from tgflow.base.choices import Direction
from tgflow.graph import EventLog, Neighbors

_EVERYTHING = 2**63 - 1


class StaticCsr:
    """All neighbors in one array, sorted by node and time, searched like the block store."""

    def __init__(self, direction: Direction = "undirected") -> None:
        self._native = _core.StaticCsr(getattr(_core.Direction, direction))

    def __len__(self) -> int:
        """Return the number of entries."""
        num_entries: int = self._native.num_entries
        return num_entries

    def build(self, log: EventLog) -> None:
        """Replace the contents by the log's events: a counting sort in reused memory."""
        events = log.read(0, len(log))
        self._native.build(events.src, events.dst, events.t)

    def insert(self, events: EventBatch) -> None:
        """Insert events that follow: later entries are shifted in place."""
        self._native.insert(*(x.cpu().contiguous() for x in (events.src, events.dst, events.t)))

    def recent(self, nodes: Tensor, t: Tensor, k: int) -> Neighbors:
        """Return the same as `tgflow.graph.sampling.recent_neighbors`."""
        return self._sample(nodes, t, k, None)

    def uniform(self, nodes: Tensor, t: Tensor, k: int, *, key: int) -> Neighbors:
        """Return the same as `tgflow.graph.sampling.uniform_neighbors`, draw for draw."""
        return self._sample(nodes, t, k, key)

    def _sample(self, nodes: Tensor, t: Tensor, k: int, key: int | None) -> Neighbors:
        out = Neighbors.empty(len(nodes), k)
        self._native.sample(nodes, t, _EVERYTHING, key, out.nodes, out.t, out.eid, out.count)
        return out
