"""The feature tables of a run: checked, opened and cached as its settings say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tgflow.cache import CachedTable, cached
from tgflow.cache.policy import Policy
from tgflow.config import Config, ConfigError
from tgflow.cuda.requirements import CudaError
from tgflow.tables import FeatureTable
from tgflow.units import parse_bytes

EDGE_ROWS = "edge-x.rows"
"""The file of a run's edge features, in its directory."""
FILED = ("disk", "auto")
"""Places that may be a file."""


def check_tables(config: Config, x_dim: int, *, live: bool) -> None:
    """Refuse tables and caches that cannot be, before anything is made.

    Args:
        config: The settings.
        x_dim: Width of the stream's edge features.
        live: Whether the stream is learned as it comes.

    Raises:
        ConfigError: If they do not fit together, or not the stream or the machine.
    """
    t = config.tables
    if t.edge_budget and t.edge_table != "auto":
        raise ConfigError(
            f"--edge-budget: it is for --edge-table auto, got {t.edge_table}; leave it out"
        )
    if t.edge_path and t.edge_table not in FILED:
        raise ConfigError(
            f"--edge-path: it is for --edge-table disk or auto, got {t.edge_table}; leave it out"
        )
    if x_dim == 0 and (t.edge_table != "host" or t.edge_cache):
        raise ConfigError(
            f"{'--edge-cache' if t.edge_cache else '--edge-table'}: the stream has no edge "
            "features; name their columns with --features, or leave it out"
        )
    if t.cache_policy and not t.edge_cache:
        raise ConfigError(
            "--cache-policy: of which cache? give its size: --edge-cache 256MiB, or leave it out"
        )
    if live:
        _check_live(config)
    if t.edge_cache and not t.edge_cache.endswith("%"):
        _check_cache_bytes(config, 4 * x_dim)
    if t.edge_path and not Path(t.edge_path).absolute().parent.is_dir():
        raise ConfigError(
            f"--edge-path: {Path(t.edge_path).parent} is no directory; make it, or name another"
        )
    _check_machine(t.edge_table)


def _check_live(config: Config) -> None:
    t = config.tables
    if t.cache_policy == "belady":
        raise ConfigError(
            "--cache-policy belady: it plans for what comes next, and a live stream has no future "
            "to know; use lru, lfu or fifo (tgflow train knows its epochs, and takes belady)"
        )
    if t.edge_cache and t.edge_cache.endswith("%"):
        raise ConfigError(
            f"--edge-cache {t.edge_cache}: of how many rows? nobody knows how many a stream will "
            "bring; give bytes, such as 256MiB"
        )


def _check_cache_bytes(config: Config, row_bytes: int) -> None:
    size, limit = config.tables.edge_cache, config.operate.memory_limit
    assert size is not None
    if parse_bytes(size) < 2 * row_bytes:
        raise ConfigError(
            f"--edge-cache {size}: a row of edge features takes {row_bytes} bytes; give room for "
            "many, such as 256MiB, or leave it out"
        )
    if limit is not None and parse_bytes(size) >= parse_bytes(limit):
        raise ConfigError(
            f"--edge-cache {size}: all of --memory-limit {limit} would be the cache's; give it less"
        )


def _check_machine(placement: str) -> None:
    if placement not in ("device", "uva"):
        return
    try:
        FeatureTable(1, placement=placement).close()  # type: ignore[arg-type]
    except CudaError as error:
        raise ConfigError(f"--edge-table {placement}: {error}; or use host or disk") from None


def edge_file(config: Config, directory: Path) -> Path | None:
    """Return the file of edge features of a run in `directory`, None if there is to be none."""
    t = config.tables
    if t.edge_table not in FILED:
        return None
    return directory / EDGE_ROWS if t.edge_path is None else Path(t.edge_path)


def check_unused(config: Config) -> None:
    """Refuse a file of features that is another run's.

    Raises:
        ConfigError: If the settings name one that is there.
    """
    path = config.tables.edge_path
    if path is not None and Path(path).exists():
        raise ConfigError(
            f"--edge-path: {path} is there already; name another file, remove it, or resume "
            "the run that it is of"
        )


def open_edge_table(config: Config, x_dim: int, directory: Path) -> FeatureTable | None:
    """Return the table of edge features of a run in `directory`; None without features.

    Raises:
        DamagedFile: If its file is there, and damaged.
        OSError: If its file cannot be opened.
    """
    if x_dim == 0:
        return None
    t = config.tables
    path = edge_file(config, directory)
    return FeatureTable(
        x_dim,
        placement=t.edge_table,
        budget=t.edge_budget,
        path=path,
        device=None if t.edge_table in ("host", "disk") else _table_device(config),
    )


def _table_device(config: Config) -> str | None:
    """Return the GPU of tables and caches; None without one."""
    device = config.run.device
    return None if device == "cpu" or config.tables.cache_policy == "belady" else device


def with_cache(config: Config, table: FeatureTable, policy: Policy) -> FeatureTable | CachedTable:
    """Return `table` behind the cache of the settings, if they want one.

    Args:
        config: The settings.
        table: Of a share of its rows, all must be there.
        policy: Where the settings name none.
    """
    t = config.tables
    if t.edge_cache is None:
        return table
    policy = t.cache_policy or policy
    if t.edge_cache.endswith("%"):
        size: dict[str, Any] = {"share": float(t.edge_cache[:-1]) / 100}
    else:
        size = {"bytes": t.edge_cache}
    return cached(table, **size, policy=policy, device=_table_device(config))
