"""Where a run's features are, and what its caches have done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tgflow.cache import CachedTable
    from tgflow.graph import TemporalGraph
    from tgflow.tables.protocols import Table

HIT_RATE = ".hit_rate"
"""Of a record: behind the name of a table."""


def table_figures(graph: TemporalGraph) -> dict[str, Any]:
    """Return where a graph's features are, and what caches did in this process, by table.

    A `hit_rate` is None where nothing was asked for, as in a run that had nothing left to learn.
    Synchronizes with a GPU that has a cache.
    """
    from tgflow.plan.inputs import feature_inputs

    return {each.name: _figures(each.table) for each in feature_inputs(graph)}


def _figures(table: Table) -> dict[str, Any]:
    from tgflow.cache import CachedTable
    from tgflow.tables import FeatureTable

    beneath = table.table if isinstance(table, CachedTable) else table
    out: dict[str, Any] = {"rows": len(table), "row_bytes": table.dim * table.dtype.itemsize}
    if isinstance(beneath, FeatureTable):
        file = beneath.path if beneath.placement == "disk" else None
        out |= {"placement": beneath.placement, "memory_bytes": beneath.nbytes}
        out["file"] = None if file is None else str(file)
    if isinstance(table, CachedTable):
        out["cache"] = _cache_figures(table)
    return out


def _cache_figures(cache: CachedTable) -> dict[str, Any]:
    counts = cache.counters
    return {
        "policy": cache.policy,
        "capacity": cache.capacity,
        "memory_bytes": cache.cache_nbytes,
        "hits": counts.hits,
        "misses": counts.misses,
        "hit_rate": counts.hit_rate if counts.hits + counts.misses else None,
        "bytes_from_table": counts.bytes_from_table,
    }


class HitRates:
    """Tells how many of the rows asked for lately the caches of a graph had."""

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
