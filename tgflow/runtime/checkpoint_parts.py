"""What a run from the command line saves beside its trainer: ingestion, settings, the log's end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tgflow.checkpoint import CheckpointStore, UntrustedCheckpoint
from tgflow.checkpoint.parts import Ids, InCheckpoint, SectionReader, SectionWriter
from tgflow.checkpoint.typed import read_as, read_natural
from tgflow.config import plain
from tgflow.durable.log import DurableLog
from tgflow.durable.position import LogPosition
from tgflow.graph.log import NodeCount
from tgflow.runtime import resume
from tgflow.runtime.directory import RunDirectory
from tgflow.runtime.files import RunFiles
from tgflow.runtime.log import RunLog
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.ingest.state import IngestState
from tgflow.train.stream_trainer import StreamTrainer

_INGEST_NOTES: Mapping[str, Any] = {
    "num_released": int,
    "watermark": int,
    "last_t": int,
    "partitions": dict[str, dict[str, Any]],
    "counts": dict[str, dict[str, Any]],
    "breaker": dict[str, dict[str, Any]],
    "letters": dict[str, int] | None,
    "log": dict[str, int] | None,
}
"""Types of what `IngestState.to_json` gives."""
MOST_LINES = 1 << 53
"""Of metrics.jsonl, more than any run writes."""


class SavedSettings:
    """Settings, machine and elapsed time of a run; config.toml follows the checkpoints.

    Args:
        directory: The run's.
        build: The machine and versions that results depend on.
        source: The name of the stream's source.
        elapsed: Seconds that the run took before.
        history: Events that another run has left, which this one began with.
        changed: Whether the newest checkpoint holds other settings, or another build.
    """

    def __init__(
        self,
        directory: RunDirectory,
        build: Mapping[str, Any],
        source: str,
        *,
        elapsed: float = 0.0,
        history: int = 0,
        changed: bool = True,
    ) -> None:
        self._directory, self._build, self._source = directory, build, source
        self._before, self._started, self._changed = elapsed, time.monotonic(), changed
        self._history = history

    @property
    def elapsed(self) -> float:
        """Seconds that the run took, over all resumes."""
        return self._before + time.monotonic() - self._started

    def after_step(self) -> None:
        """Do nothing."""

    def changed(self) -> bool:
        """Whether the newest checkpoint holds other settings, or another build."""
        return self._changed

    def save(self, writer: SectionWriter) -> None:
        """Note `model` and `run`."""
        config = self._directory.config
        writer.note("model", plain(config)["model"])
        run = {
            "build": self._build,
            "elapsed": self.elapsed,
            **({"history": self._history} if self._history else {}),
            "source": self._source,
            "settings": resume.fixed_settings(config),
        }
        writer.note("run", run)

    def saved(self) -> None:
        """Write config.toml: a checkpoint stands for its settings."""
        self._changed = False
        self._directory.commit_settings()


class SavedRecords:
    """The lines of metrics.jsonl, which are outside of checkpoints.

    Args:
        files: The run's.
    """

    name = "records"

    def __init__(self, files: RunFiles) -> None:
        self._files = files

    def after_step(self) -> None:
        """Do nothing."""

    def changed(self) -> bool:
        """Return False: what has no micro-batch has no line."""
        return False

    def save(self, writer: SectionWriter) -> None:
        """Note how many lines there are; they are on the disk when this returns."""
        writer.note(self.name, self._files.sync_records())

    def load(self, reader: SectionReader) -> None:
        """Cut off the lines that are newer than the checkpoint."""
        noted = read_as(dict[str, int], reader.meta.get(self.name), self.name)
        read_natural(noted, "bytes")
        if "lines" in noted:
            read_natural(noted, "lines", most=MOST_LINES)
        self._files.rewind_records(noted)

    def clear(self) -> None:
        """Cut off all lines: the run begins."""
        self._files.rewind_records({"bytes": 0})

    def saved(self) -> None:
        """Do nothing."""


class IngestPart(InCheckpoint):
    """A state of ingestion.

    Args:
        state: To save; None to load.
    """

    name = "ingest"

    def __init__(self, state: IngestState | None = None) -> None:
        self.state = state

    def save(self, writer: SectionWriter) -> None:
        """Add section `reorder`, and note `ingest`."""
        assert self.state is not None
        writer.put("reorder", self.state.state_dict(), volatile=True)
        writer.note(self.name, self.state.to_json())

    def load(self, reader: SectionReader) -> None:
        """Have `state` as it was saved.

        Raises:
            UntrustedCheckpoint: If no state of ingestion is saved so.
        """
        noted = read_as(dict[str, Any], reader.meta.get(self.name), self.name)
        for key, kind in _INGEST_NOTES.items():
            read_as(kind, noted.get(key), f"{self.name}.{key}")
        read_natural(noted, "num_released", most=read_natural(reader.meta, "position"))
        try:
            self.state = IngestState.from_json(noted, reader.get("reorder"))
        except ValueError as error:
            raise UntrustedCheckpoint(str(error)) from None


class SavedIngest:
    """What ingestion knows at the trainer's position: ids, positions, events held back.

    Args:
        ingest: Ingestion.
        trainer: What learns from it.
        state: What the newest checkpoint holds of it; None without one.
    """

    def __init__(
        self, ingest: Ingest, trainer: StreamTrainer, state: IngestState | None = None
    ) -> None:
        self._ingest, self._trainer = ingest, trainer
        self._nodes = NodeCount(trainer.graph.log)
        self._saved = None if state is None else state.to_json()
        self._pending: IngestState | None = None

    def after_step(self) -> None:
        """Let go of what only earlier positions need."""
        self._ingest.forget_before(self._trainer.position)

    def changed(self) -> bool:
        """Whether more was read than the newest checkpoint knows."""
        return self._ingest.state_at(self._trainer.position).to_json() != self._saved

    def save(self, writer: SectionWriter) -> None:
        """Save the ids that the trainer's events have, and the state of ingestion."""
        self._pending = self._ingest.state_at(self._trainer.position)
        Ids(self._ingest.ids, self._nodes.upto(self._trainer.position)).save(writer)
        IngestPart(self._pending).save(writer)

    def saved(self) -> None:
        """Let the source know which events need not come again."""
        assert self._pending is not None
        self._saved = self._pending.to_json()
        self._ingest.committed(self._pending)


class LogRetention:
    """Removes the log before the oldest checkpoint that is kept; adds nothing to checkpoints.

    Args:
        log: The log.
        store: The checkpoints.
        run_log: Hears that it could not be removed.
    """

    def __init__(self, log: DurableLog, store: CheckpointStore, run_log: RunLog) -> None:
        self._log, self._store, self._run_log = log, store, run_log

    def after_step(self) -> None:
        """Do nothing."""

    def changed(self) -> bool:
        """Return False: it is in no checkpoint."""
        return False

    def save(self, writer: SectionWriter) -> None:
        """Do nothing."""

    def saved(self) -> None:
        """Remove what no checkpoint needs any more."""
        oldest = self._store.oldest_kept()
        if oldest is None or oldest["ingest"]["log"] is None:
            return
        try:
            self._log.drop_before(LogPosition.from_json(oldest["ingest"]["log"]))
        except OSError as error:
            text = f"old segments of the log could not be removed: {error}"
            self._run_log.warning("log", text)
