"""Where a run's features are, and what its caches have done: as figures, and in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tgflow.run.figures import num_bytes

if TYPE_CHECKING:
    from tgflow.graph import TemporalGraph

TITLES = {"edge_x": "edge features"}
"""What tables are called."""


def table_figures(graph: TemporalGraph) -> dict[str, Any]:
    """Return where a graph's edge features are, and what a cache has done; empty without any.

    Synchronises with a GPU that has the cache.
    """
    from tgflow.cache import CachedTable
    from tgflow.tables import FeatureTable

    table = graph.edge_x
    if table is None:
        return {}
    beneath = table.table if isinstance(table, CachedTable) else table
    out: dict[str, Any] = {"rows": len(table), "row_bytes": table.dim * table.dtype.itemsize}
    if isinstance(beneath, FeatureTable):
        file = beneath.path if beneath.place == "disk" else None
        out |= {"place": beneath.place, "memory_bytes": beneath.nbytes}
        out["file"] = None if file is None else str(file)
    if isinstance(table, CachedTable):
        counts = table.counters
        out["cache"] = {
            "policy": table.policy,
            "capacity": table.capacity,
            "memory_bytes": table.cache_nbytes,
            "hits": counts.hits,
            "misses": counts.misses,
            "hit_rate": counts.hit_rate,
            "bytes_from_table": counts.bytes_from_table,
        }
    return {"edge_x": out}


def told(figures: Mapping[str, Any]) -> str:
    """Return in words what `table_figures` says of a table."""
    size = num_bytes(figures["rows"] * figures["row_bytes"])
    where = "on disk" if figures["place"] == "disk" else f"in {figures['place']} memory"
    text = f"{figures['rows']:,} rows ({size}) {where}"
    if (cache := figures.get("cache")) is not None:
        text += (
            f", {cache['hit_rate']:.1%} read from a cache of {cache['capacity']:,} "
            f"({cache['policy']}, {num_bytes(cache['memory_bytes'])})"
        )
    return text
