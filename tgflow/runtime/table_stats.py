"""Where a run's features are, and what its caches have done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tgflow.graph import TemporalGraph

HIT_RATE = ".hit_rate"
"""Of a record: behind the name of a table."""


def table_figures(graph: TemporalGraph) -> dict[str, Any]:
    """Return where a graph's features are, and what caches did in this process, by table.

    A `hit_rate` is None where nothing was asked for, as in a run that had nothing left to learn.
    Synchronizes with a GPU that has a cache.
    """
    from tgflow.plan.assembly import feature_inputs

    return {each.name: each.table.describe() for each in feature_inputs(graph)}


class HitRates:
    """The share of the rows asked for lately that the caches of a graph had."""

    def __init__(self, graph: TemporalGraph) -> None:
        from tgflow.train.caches import caches_of

        self._caches = caches_of(graph)
        self._before: dict[str, tuple[int, int]] = {}

    def lately(self) -> dict[str, float]:
        """Return the share of hits since the last call, as "TABLE.hit_rate", where rows were."""
        out = {}
        for name, cache in self._caches.items():
            hits, misses = self._before.get(name, (0, 0))
            counts = cache.counters
            self._before[name] = counts.hits, counts.misses
            asked = counts.hits + counts.misses - hits - misses
            if asked:
                out[name + HIT_RATE] = (counts.hits - hits) / asked
        return out
