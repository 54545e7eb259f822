"""What `tgflow plan` is asked, and what it has found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tgflow.cli.footprint import Structure
from tgflow.distributed.costs import RankCosts


@dataclass(frozen=True, slots=True)
class World:
    """What is asked about."""

    size: int
    """Ranks."""
    num_batches: int
    """Micro-batches to look at, spread over the stream; 0: all."""
    num_events: int | None = None
    """Of a larger stream of the same kind."""
    num_nodes: int | None = None


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What a world would do with a stream."""

    stream: str
    num_events: int
    num_nodes: int
    world: int
    slices: int
    batch_size: int
    num_batches: int
    """Micro-batches that were looked at."""
    costs: RankCosts
    """Of all of them."""
    memory: Sequence[Structure]
    """Of this stream."""
    scaled_events: int
    scaled_nodes: int
    scaled_memory: Sequence[Structure]
    """Of the larger one."""
    limit: int
    """Bytes that a rank may have."""
    misfits: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Return it, fit for JSON: loads and bytes are sums over `num_batches`, one a rank."""
        found = {
            name: getattr(self, name)
            for name in (
                "stream", "num_events", "num_nodes", "world", "slices", "batch_size",
                "num_batches", "scaled_events", "scaled_nodes", "limit",
            )
        }  # fmt: skip
        ranks = range(self.world)
        schedule = self.costs.schedule
        return found | {
            "slices_of_rank": [[*schedule.slices_of(rank)] for rank in ranks],
            "loads": self.costs.loads,
            "bytes": self.costs.sent,
            "memory": [asdict(each) for each in self.memory],
            "scaled_memory": [asdict(each) for each in self.scaled_memory],
            "misfits": list(self.misfits),
        }
