"""When a run is kept, and how: a copy between two micro-batches, written beside the training."""

from __future__ import annotations

import time

from tgflow.checkpoint import Checkpoint, read_manifest
from tgflow.config import plain
from tgflow.durable.position import LogPosition
from tgflow.runtime import resume
from tgflow.runtime.build import Kept, Session
from tgflow.streams.ingest.state import IngestState


class CheckpointScheduler:
    """Takes checkpoints of a session by time and by micro-batches.

    Args:
        session: The run.
        clock: Seconds that never go back.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._config = session.config.checkpoint
        self._started = time.monotonic()
        self._taken_at = self._started
        self._batches = 0
        self._nodes = (0, 0)
        self._pending: IngestState | None = None
        self._failures = 0
        self._kept = session.kept
        self.saved_at: float | None = None
        """When the latest one on the disk was taken, on the monotonic clock."""
        self.copy_seconds = 0.0
        """How long the training waited for the latest one."""

    def after_step(self) -> None:
        """Take a checkpoint if it is time; one that is late waits for the one under way.

        Raises:
            OSError: If the disk refused three in a row.
            Unbalanced: If a row got lost.
        """
        self._batches += 1
        self._session.ingest.forget_before(self._session.trainer.position)
        if self._session.writer.busy:
            return
        self._settle()
        c = self._config
        by_time = c.checkpoint_every and time.monotonic() - self._taken_at >= c.checkpoint_every
        if by_time or (c.checkpoint_batches and self._batches >= c.checkpoint_batches):
            self._take()

    def finish(self) -> str | None:
        """Keep all there is, and return the digest of the state that is on the disk.

        Raises:
            OSError: If the disk refuses.
            Unbalanced: If a row got lost.
        """
        writer = self._session.writer
        try:
            writer.wait()
        except OSError as error:
            self._session.notes.warning("checkpoint", str(error))
        self._settle()
        if self._mark() != self._kept:
            failures = writer.stats.failures
            self._take()
            stats = writer.wait()
            self._settle()
            if stats.failures > failures:
                raise OSError(f"the last checkpoint could not be written: {stats.last_error}")
        digest = read_manifest(self._session.store.entries()[-1].path)["state_sha256"]
        return None if digest is None else str(digest)

    def _mark(self) -> Kept:
        """Return what a checkpoint taken now would hold."""
        position = self._session.trainer.position
        return position, self._session.ingest.state_at(position).meta()

    def _take(self) -> None:
        """Copy the state, and begin to write it."""
        session = self._session
        start = time.monotonic()
        state = session.ingest.state_at(session.trainer.position)
        checkpoint = self._checkpoint(state)
        self.copy_seconds = time.monotonic() - start
        self._taken_at, self._batches, self._pending = start, 0, state
        session.writer.submit(session.trainer.position, checkpoint)

    def _checkpoint(self, state: IngestState) -> Checkpoint:
        session = self._session
        checkpoint = session.trainer.checkpoint()
        tensors, meta = state.to_checkpoint()
        checkpoint.put("ids", session.ingest.ids.state(self._num_nodes()))
        checkpoint.put("reorder", tensors, volatile=True)
        checkpoint.note("ingest", meta)
        checkpoint.meta["model"] = plain(session.config)["model"]
        checkpoint.meta["run"] = {
            "build": session.build,
            "elapsed": session.elapsed + time.monotonic() - self._started,
            "records_bytes": session.place.rundir.sync_records(),
            "source": session.ingest.source.name,
            "settings": resume.fixed_settings(session.config),
        }
        return checkpoint

    def _num_nodes(self) -> int:
        """Return how many nodes the events have that the trainer has stored."""
        position, num = self._nodes
        trainer = self._session.trainer
        events = trainer.graph.log.read(position, trainer.position)
        if len(events):
            num = max(num, int(events.src.max()) + 1, int(events.dst.max()) + 1)
        self._nodes = (trainer.position, num)
        return num

    def _settle(self) -> None:
        """Do what waits for the checkpoint under way to be on the disk; it no longer is."""
        session, stats = self._session, self._session.writer.stats
        if stats.failures > self._failures:
            self._failures = stats.failures
            session.notes.warning(
                "checkpoint", f"no checkpoint was written, training goes on: {stats.last_error}"
            )
            self._pending = None
        if self._pending is None:
            return
        state, self._pending = self._pending, None
        assert stats.last_step is not None
        self._kept = stats.last_step, state.meta()
        session.place.settle()
        self.saved_at = self._taken_at
        session.notes.info(
            "checkpoint",
            f"checkpoint {stats.last_step} written",
            position=stats.last_step,
            bytes=stats.num_bytes,
            seconds=round(stats.seconds, 3),
            copy_seconds=round(self.copy_seconds, 3),
        )
        session.ingest.committed(state)
        self._cut_log()

    def _cut_log(self) -> None:
        """Let go of the log before the mark of the oldest checkpoint that is kept."""
        session = self._session
        oldest = session.store.oldest_kept()
        if session.log is None or oldest is None or oldest["ingest"]["log"] is None:
            return
        try:
            session.log.drop_before(LogPosition.from_json(oldest["ingest"]["log"]))
        except OSError as error:
            session.notes.warning("log", f"old segments of the log could not be removed: {error}")
