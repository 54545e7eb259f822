"""Checkpoints of a run: their schedule, and its settings and records in them.

The state is copied between two micro-batches and written by a background thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, replace
from typing import Any

from tgflow.base.peers import Shard
from tgflow.checkpoint import (
    Checkpoint,
    CheckpointStore,
    CheckpointWriter,
    Component,
    read_manifest,
)
from tgflow.checkpoint.store import WriterStats
from tgflow.checkpoint.typed import read_as, read_natural
from tgflow.report.compare.offline import OfflineResults
from tgflow.run.config import flat, plain
from tgflow.run.config.schema import CheckpointConfig
from tgflow.run.directory import RunDirectory, fixed_settings
from tgflow.run.log import RunLog
from tgflow.run.records import RunFiles, RunNote, lost_records
from tgflow.train.observe import Callback, StepRecord
from tgflow.train.stream_trainer import StreamTrainer


class Checkpoints(AbstractContextManager["Checkpoints"]):
    """Takes checkpoints by time and by steps; a context manager that waits for the last.

    A step is a micro-batch, or an epoch of an offline training.

    `announce` broadcasts whether the last checkpoint is taken, as all ranks must take part.
    `is_asked` returns whether one is requested beside the schedule.
    """

    def __init__(
        self,
        trainer: StreamTrainer | OfflineResults,
        store: CheckpointStore,
        writer: CheckpointWriter,
        run_log: RunLog,
        config: CheckpointConfig,
        *,
        components: Sequence[Component] = (),
        saved: int | None = None,
        shard: Shard | None = None,
        announce: Callable[[bool], object] | None = None,
        is_asked: Callable[[], bool] = lambda: False,
    ) -> None:
        self._trainer, self._store, self._writer = trainer, store, writer
        self._is_asked, self._asked = is_asked, False
        self._run_log, self._components, self._announce = run_log, components, announce
        self._config = config
        self._shard = Shard() if shard is None else shard
        self._taken_at = time.monotonic()
        self._batches = 0
        self._is_pending = False
        self.saved = saved
        """Events in the newest checkpoint known to be on disk; None without one."""
        self.copy_seconds = 0.0
        """Time for which the latest checkpoint blocked the training."""

    @property
    def stats(self) -> WriterStats:
        return self._writer.stats

    @property
    def age(self) -> float | None:
        """Seconds of progress that a crash would lose; None before the first checkpoint."""
        begun = self.stats.begun
        return None if begun is None else time.monotonic() - begun

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):  # already logged, or a worse error ends the run
            self._writer.wait()

    def after_step(self) -> bool:
        """Return whether a checkpoint is due; one that is late waits for the one in progress."""
        self._batches += 1
        self._asked = self._is_asked() or self._asked
        if self._writer.busy:
            return False
        self._complete()
        every, every_batches = self._config.checkpoint_every, self._config.checkpoint_batches
        by_time = every and time.monotonic() - self._taken_at >= every
        by_batches = every_batches and self._batches >= every_batches
        return bool(by_time or by_batches or self._asked)

    def finish(self) -> str | None:
        """Save the final state, and return the digest of the state on disk."""
        try:
            self._writer.wait()
        except OSError as error:
            self._run_log.warning("checkpoint", str(error))
        self._complete()
        is_due = self.saved != self._trainer.position or any(
            each.changed() for each in self._components
        )
        if self._announce is not None:
            self._announce(is_due)
        if is_due:
            # the other ranks take part only if it was announced
            self._shard = Shard() if self._announce is None else self._shard
            if not self.take_and_wait():
                raise OSError(f"the last checkpoint could not be written: {self.stats.last_error}")
        digest = read_manifest(self._store.entries()[-1].path)["state_sha256"]
        return None if digest is None else str(digest)

    def take(self) -> None:
        """Copy the state and start the write; all ranks that save together call this together."""
        start = time.monotonic()
        trainer = self._trainer
        later = isinstance(trainer, StreamTrainer) and trainer.device.type == "cpu"
        checkpoint = Checkpoint({}, shard=self._shard, copies_later=later)
        self._trainer.save_to(checkpoint)
        for each in self._components:
            each.save(checkpoint)
        self.copy_seconds = time.monotonic() - start
        self._taken_at, self._batches, self._is_pending = start, 0, True
        self._asked = False
        self._writer.submit(self._trainer.position, checkpoint)

    def take_and_wait(self) -> bool:
        """Copy the state and write it; return whether it is on disk."""
        self.take()
        self._writer.wait()
        return self._complete()

    def _complete(self) -> bool:
        """Process the checkpoint in progress; return False if it was not written."""
        stats, is_pending = self.stats, self._is_pending
        self._is_pending = False
        if not is_pending:
            return True
        if stats.failures_in_a_row:
            text = f"no checkpoint was written, training continues: {stats.last_error}"
            self._run_log.warning("checkpoint", text)
            return False
        self.saved = stats.last_step
        for each in self._components:
            each.saved()
        self._run_log.info(
            "checkpoint",
            f"checkpoint {stats.last_step} written",
            position=stats.last_step,
            bytes=stats.num_bytes,
            seconds=round(stats.seconds, 3),
            copy_seconds=round(self.copy_seconds, 3),
        )
        return True


class SavedSettings(Component):
    """Settings, build and elapsed time of a run; `before` is what its newest checkpoint has."""

    def __init__(
        self,
        directory: RunDirectory,
        build: dict[str, Any],
        before: RunNote,
        *,
        changed: bool = True,
    ) -> None:
        self._model = plain(directory.config)["model"]
        settings = fixed_settings(flat(directory.config))
        self._note = replace(before, build=build, settings=settings)
        self._changed, self._started = changed, time.monotonic()

    @property
    def elapsed(self) -> float:
        return self._note.elapsed + time.monotonic() - self._started

    def changed(self) -> bool:
        """Whether the newest checkpoint has other settings, or another build."""
        return self._changed

    def save(self, writer: Checkpoint) -> None:
        writer.note("model", self._model)
        writer.note("run", asdict(replace(self._note, elapsed=self.elapsed)))

    def saved(self) -> None:
        self._changed = False


class SavedRecords(Component, Callback):
    """The lines of metrics.jsonl: checkpoints store their number; newer ones are truncated."""

    def __init__(self, files: RunFiles, newest: Checkpoint | None, run_log: RunLog) -> None:
        self._files, lines = files, 0
        if newest is not None:
            noted = read_as(dict[str, int], newest.meta.get("records"), "records")
            lines = read_natural(noted, "lines")
        files.record_file.rewind(lines)
        if lost := lost_records(files.records, lines):
            run_log.warning("records", f"{lost}; the report lacks them, and the model does not")

    def on_step(self, record: StepRecord) -> None:
        self._files.log(record.to_json())

    def save(self, writer: Checkpoint) -> None:
        """Save the number of lines; they are on disk before the checkpoint is."""
        writer.note("records", {"lines": self._files.record_file.num_written})
        writer.outside.append(self._files.record_file.sync)
