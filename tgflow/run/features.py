"""The feature tables of a run: validation of settings, opening, caching, and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tgflow.base.setting import Size
from tgflow.base.units import parse_bytes
from tgflow.checkpoint import Checkpoint, CheckpointStore, Component
from tgflow.cuda.device import Device
from tgflow.cuda.requirements import CudaError
from tgflow.graph import TemporalGraph
from tgflow.graph.cache import CachedTable, cached
from tgflow.graph.cache.contents import Policy
from tgflow.graph.feature_scale import FREEZE_AT, FeatureScale
from tgflow.graph.ids import NodeIds
from tgflow.graph.tables import FeatureTable
from tgflow.graph.tables.table import Table
from tgflow.plan.assemble import feature_inputs
from tgflow.run.config import ConfigError
from tgflow.run.config.schema import FILED, Placement, ScaleKind, TablesConfig
from tgflow.run.node_features import NodeFeatures
from tgflow.train.caches import caches_of

EDGE_ROWS = "edge-x.rows"
GPU_SHARE = 0.5
"""Share of free GPU memory, after the graph's, that edge features take without a budget."""


def check_tables(t: TablesConfig, placement: Placement, x_dim: int, world: int) -> None:
    """Raise `ConfigError` for tables that do not fit the stream's features or this machine."""
    if x_dim == 0 and (t.edge_table not in (None, "host") or t.edge_cache):
        text = "the stream has no edge features; name their columns with --features, or leave it"
        raise ConfigError(f"{'--edge-cache' if t.edge_cache else '--edge-table'}: {text} out")
    is_size = t.edge_cache is not None and not t.edge_cache.endswith("%")
    if t.edge_cache and is_size and parse_bytes(t.edge_cache) < 8 * x_dim:
        text = f"--edge-cache {t.edge_cache}: a row of edge features takes {4 * x_dim} bytes; give "
        raise ConfigError(f"{text}it more, such as 256MiB, or leave it out")
    if t.edge_path and not Path(t.edge_path).absolute().parent.is_dir():
        raise ConfigError(
            f"--edge-path: {Path(t.edge_path).parent} is no directory; make it, or name another"
        )
    try:
        if placement in ("device", "uva"):
            FeatureTable(1, placement=placement).close()
    except CudaError as error:
        raise ConfigError(f"--edge-table {placement}: {error}; or use host or disk") from None
    if x_dim and world > 1 and placement == "auto":
        text = f"--edge-table auto: {world} ranks would use a file at different times; use host or "
        raise ConfigError(f"{text}disk, or device on a GPU")


def scale_of(kind: ScaleKind, x_dim: int, freeze_at: int = FREEZE_AT) -> FeatureScale | None:
    return None if kind == "none" or x_dim == 0 else FeatureScale(kind, freeze_at)


def features_report(
    graph: TemporalGraph, nodes: NodeFeatures | None, ids: NodeIds
) -> dict[str, str]:
    said = {}
    if graph.feature_scale is not None and graph.edge_x is not None:
        said["scale"] = graph.feature_scale.line()
    if graph.node_scale is not None:
        said["node_scale"] = graph.node_scale.line("node features", "nodes")
    if nodes is not None:
        said["nodes"] = nodes.line(ids, graph.num_nodes)
    return said


def edge_file(
    placement: Placement, path: str | None, directory: Path, rank: int = 0
) -> Path | None:
    """Return the file of edge features of a rank of a run in `directory`, None without one."""
    if placement not in FILED:
        return None
    file = directory / EDGE_ROWS if path is None else Path(path)
    return file.with_name(f"{file.stem}-{rank:03}{file.suffix}") if rank else file


def check_unused(path: str | None) -> None:
    if path is not None and Path(path).exists():
        text = f"--edge-path: {path} exists already; name another file, remove it, or resume the "
        raise ConfigError(f"{text}run that owns it")


def open_edge_table(
    placement: Placement,
    budget: Size | None,
    x_dim: int,
    file: Path | None,
    gpu: Device | None,
    for_graph: Size | None = None,
) -> FeatureTable | None:
    """Return the table of a run's edge features; None without features.

    `file` is that of the rank; None: a temporary one, if there is any. `for_graph` is the GPU
    memory that the graph takes.
    """
    if x_dim == 0:
        return None
    if budget is None and placement == "auto" and gpu is not None:
        room = gpu.free_bytes() - (0 if for_graph is None else parse_bytes(for_graph))
        budget = int(GPU_SHARE * max(0, room))
    return FeatureTable(
        x_dim,
        placement=placement,
        budget=budget,
        path=file,
        device=None if placement in ("host", "disk") else gpu,
    )


def with_cache(
    t: TablesConfig, table: FeatureTable, policy: Policy, gpu: Device | None
) -> FeatureTable | CachedTable:
    if t.edge_cache is None:
        return table
    named = t.cache_policy or (policy if gpu is None else None)  # GPU caches have their own policy
    size: dict[str, Any] = {"bytes": t.edge_cache}
    if t.edge_cache.endswith("%"):
        size = {"share": float(t.edge_cache[:-1]) / 100}
    return cached(table, **size, policy=named, device=gpu)


def table_figures(graph: TemporalGraph) -> dict[str, Any]:
    """Return placements of a graph's features, and figures of caches in this process, by table.

    A `hit_rate` is None if no row was read, as in a run with nothing left to learn. Synchronizes
    with a GPU that has a cache.
    """
    return {each.name: each.table.describe() for each in feature_inputs(graph)}


class EdgeRows(Component):
    """Frees the file of edge features before the horizon of the oldest checkpoint that is kept."""

    def __init__(self, table: Table, store: CheckpointStore) -> None:
        self._table, self._store = table.base, store

    def save(self, writer: Checkpoint) -> None:
        writer.committed.append(lambda path: self._free())

    def _free(self) -> None:
        oldest = self._store.oldest_kept()
        if oldest is not None and isinstance(self._table, FeatureTable):
            self._table.free_file(oldest["first"])


class HitRates:
    """Hit rates of a graph's caches since the last call."""

    def __init__(self, graph: TemporalGraph) -> None:
        self._caches = caches_of(graph)
        self._before: dict[str, tuple[int, int]] = {}

    def lately(self) -> dict[str, float]:
        out = {}
        for name, cache in self._caches.items():
            hits, misses = self._before.get(name, (0, 0))
            counts = cache.counters
            self._before[name] = counts.hits, counts.misses
            if asked := counts.hits + counts.misses - hits - misses:
                out[f"{name}.hit_rate"] = (counts.hits - hits) / asked
        return out
