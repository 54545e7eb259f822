"""Plan batches for model tests, and neighbors found by a full scan."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tgflow.graph import TemporalGraph
from tgflow.graph.batch import Batch
from tgflow.graph.events import EventBatch
from tgflow.graph.tables import FeatureTable
from tgflow.plan import ExperienceReplay, NegativeSampler, Plan

Slot = tuple[int, int, int]
"""A neighbor, its event's tick and its event."""


def made_batch(
    events: EventBatch,
    index: int,
    batch_size: int,
    fanouts: Sequence[int],
    *,
    node_x: Tensor | None = None,
    replay: ExperienceReplay | None = None,
) -> Batch:
    """Return batch `index` of a stream, with recent neighbors as of the batch's start."""
    table = None if node_x is None else FeatureTable.from_tensor(node_x)
    graph = TemporalGraph.from_events(events, node_x=table)
    plan = Plan(
        graph,
        seed=0,
        batch_size=batch_size,
        fanouts=fanouts,
        strategy="recent",
        visibility="batch",
        negatives=NegativeSampler(random=1),
        replay=replay,
        with_memory=True,
    )
    return plan.batch(0, index)


def neighbors(events: EventBatch, node: int, tick: int, before: int, k: int) -> list[Slot]:
    """Return up to `k` neighbors strictly before a tick and a log position, newest first."""
    found: list[Slot] = []
    for eid in reversed(range(min(before, len(events)))):
        a, b, t = int(events.src[eid]), int(events.dst[eid]), int(events.t[eid])
        if t < tick and node in (a, b) and len(found) < k:
            found.append((b if a == node else a, t, eid))
    return found
