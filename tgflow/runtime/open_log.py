"""The log of a run, opened where its checkpoint left off."""

from __future__ import annotations

from pathlib import Path

from tgflow.durable.errors import LogCorrupt
from tgflow.durable.log import DurableLog
from tgflow.runtime.log import RunLog
from tgflow.streams.ingest.state import IngestState

SEGMENT_BYTES = 16 << 20
"""Of a file of the log, about: what no checkpoint needs any more is given back by the file."""


def open_log(
    path: Path, state: IngestState | None, idle_timeout: float | None, run_log: RunLog
) -> DurableLog:
    """Return the log, all of which that will be read is sound.

    One that is gone, with a checkpoint there, starts over where that leaves off: what it held comes
    from the source again, as without a log.

    Args:
        path: Its directory.
        state: What the checkpoint knows of ingestion; None if the run starts.
        idle_timeout: Of the settings: if there is one, a log that is gone cannot be made good.
        run_log: Hears of what is missing or damaged where nothing will be read.

    Raises:
        LogCorrupt: If it is damaged, or does not go with the checkpoint.
    """
    needed = None if state is None else state.log
    if needed is not None and not any(path.glob("*.log")):
        if idle_timeout is not None:
            raise LogCorrupt(f"{path} is gone, and only it knew which partitions were idle")
        text = f"{path} is gone; what came after the checkpoint is read from the source again"
        run_log.warning("log", text)
    log = DurableLog(  # checked here, not in the thread that reads it
        path, segment_bytes=SEGMENT_BYTES, needed=needed, check=True
    )
    try:
        for problem in log.problems:
            run_log.warning("log", problem)
        if needed is None and not log.is_whole:
            raise LogCorrupt(
                f"{log.directory} has lost its beginning, and there is no checkpoint to resume from"
            )
        if needed is not None:
            log.locate(needed)
    except BaseException:
        log.close()
        raise
    return log
