"""tgflow and its peers as samplers of recent neighbors that take a stream as it comes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from torch import Tensor

from benchmarks import peers
from benchmarks.results import skipped
from tgflow.bench.row import COSTS, Params, Row
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.sampling import recent_neighbors

OWN = "tgflow"


class MeasuredSampler(Protocol):
    """A store of a stream's events, asked for the most recent neighbors."""

    def insert(self, events: EventBatch) -> None:
        """Add events that follow."""

    def two_hops(self, nodes: Tensor, t: Tensor) -> object:
        """Sample the neighbors of `nodes`, int64 `[Q]`, and the neighbors of those."""

    def neighbors(self, nodes: Tensor, t: Tensor) -> Tensor:
        """Return the neighbors' ids, int64 `[Q, k]`, -1 where there is none, in any order."""


class OwnSampler:
    """A `TemporalGraph`."""

    def __init__(self, k: int) -> None:
        self.graph, self.k = TemporalGraph(), k

    def insert(self, events: EventBatch) -> None:
        """Add events that follow."""
        self.graph.append(events)

    def two_hops(self, nodes: Tensor, t: Tensor) -> object:
        """Sample neighbors, and theirs."""
        first = recent_neighbors(self.graph, nodes, t, self.k)
        return recent_neighbors(self.graph, first.nodes.view(-1), first.t.view(-1), self.k)

    def neighbors(self, nodes: Tensor, t: Tensor) -> Tensor:
        """Return the neighbors' ids."""
        return recent_neighbors(self.graph, nodes, t, self.k).nodes


def contenders(num_nodes: int, k: int) -> tuple[dict[str, MeasuredSampler], dict[str, str]]:
    """Return empty samplers by library, tgflow's first, and why other libraries have none."""
    present: dict[str, MeasuredSampler] = {OWN: OwnSampler(k)}
    absent = {}
    for peer in peers.SAMPLERS:
        loaded = peers.load(peer, num_nodes, k)
        if isinstance(loaded, str):
            absent[peer.library] = loaded
        else:
            present[peer.library] = loaded
    return present, absent


def share_equal(ours: Tensor, theirs: Tensor) -> float:
    """Return the share of rows that hold the same neighbors, in any order."""
    equal = (ours.sort(1).values == theirs.sort(1).values).all(1)
    return float(equal.double().mean()) if len(equal) else 1.0


def library_rows(
    name: str,
    unit: str,
    values: Mapping[str, float],
    absent: Mapping[str, str],
    params: Params,
    target_ratio: float | None = None,
) -> Iterator[Row]:
    """Give each library a row; tgflow's is compared with the best of the others."""
    best = min if unit in COSTS else max
    others = [value for library, value in values.items() if library != OWN]
    baseline = best(others) if others else None
    for library, value in values.items():
        compared = (None, baseline, target_ratio) if library == OWN and others else ()
        yield Row(name, value, unit, {**params, "library": library}, *compared)
    for library, reason in absent.items():
        yield skipped(name, unit, {"library": library}, reason)
