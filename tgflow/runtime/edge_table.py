"""The table of a run's edge features: opened empty, or where a checkpoint left off."""

from __future__ import annotations

from tgflow.checkpoint import Checkpoint, RowsLost
from tgflow.cuda.device import Device
from tgflow.distributed.rows import ShardedRows
from tgflow.peers import Peers
from tgflow.runtime.directory import RunDirectory
from tgflow.runtime.features import check_unused, edge_file, open_edge_table, with_cache
from tgflow.tables import DamagedFile
from tgflow.tables.protocols import Table
from tgflow.train.feature_rows import file_of, same_file


def open_table(
    directory: RunDirectory,
    x_dim: int,
    checkpoint: Checkpoint | None,
    gpu: Device | None,
    peers: Peers,
) -> Table | None:
    """Return the table, cache and all, as the settings want it; None without features.

    What its file holds and no checkpoint counts comes from log or source again, so it is cut off.

    Args:
        directory: The run's directory, taken.
        x_dim: Width of the features.
        checkpoint: What to resume from; None starts.
        gpu: With the graph; None where that is on the host.
        peers: The ranks, of which each has a part of the rows if the settings want that.

    Raises:
        RowsLost: If its file has not the rows that the checkpoint counts.
        OSError: If its file cannot be opened.
    """
    file = edge_file(directory.config, directory.path)
    counted = None if checkpoint is None else file_of(checkpoint.meta, "edge_x")
    if file is not None and not file.exists() and same_file(counted, file):
        raise RowsLost(f"{file} is gone, and with it the edge features that the checkpoint counts")
    try:
        table = open_edge_table(directory.config, x_dim, directory.path, gpu)
    except DamagedFile as error:
        raise RowsLost(f"the run's edge features cannot be read: {error}") from None
    if table is None:
        return None
    if counted is None:
        table.truncate(0)
    if peers.world > 1 and directory.config.ranks.edge_rows == "sharded":
        return with_cache(directory.config, ShardedRows(table, peers), "lru", gpu)
    return with_cache(directory.config, table, "lru", gpu)


def check_own(directory: RunDirectory) -> None:
    """Refuse a file of edge features that may be another run's, which would be cut off or moved.

    A run resumes with a file that the settings did not name before if its checkpoint counts rows in
    a file: they are looked for there, and nothing is changed if they are others.

    Raises:
        ConfigError: If the settings name one that is there.
    """
    if directory.resumed and not any(
        change.key == "tables.edge_path" for change in directory.changed
    ):
        return
    if file_of(directory.newest_meta(), "edge_x") is None:
        check_unused(directory.config)
