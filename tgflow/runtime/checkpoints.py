"""When a run is saved, and how: a copy between two micro-batches, written beside the training."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from tgflow.checkpoint import CheckpointStore, CheckpointWriter, read_manifest
from tgflow.checkpoint.parts import SectionWriter
from tgflow.checkpoint.rank_checkpoint import RankCheckpoint
from tgflow.checkpoint.writer import WriterStats
from tgflow.peers import Shard
from tgflow.runtime.log import RunLog
from tgflow.train.stream_trainer import StreamTrainer


class CheckpointPart(Protocol):
    """What belongs in a run's checkpoints beside its trainer, or depends on them."""

    def after_step(self) -> None:
        """Hear that another micro-batch was learned."""

    def changed(self) -> bool:
        """Whether a checkpoint taken now would hold something else than the newest on the disk."""

    def save(self, writer: SectionWriter) -> None:
        """Save what it is now; what it becomes later does not change what was saved."""

    def saved(self) -> None:
        """Hear that the checkpoint of the latest `save` is on the disk.

        Raises:
            OSError: If what follows from it cannot be written.
        """


class Saves(Protocol):
    """What saves a run, or leaves it to rank 0."""

    @property
    def saved(self) -> int | None:
        """Events in the newest checkpoint that is known to be on the disk; None without one."""

    def after_step(self) -> bool:
        """Hear that another micro-batch was learned; return whether it is time to save."""

    def take(self) -> None:
        """Save here, while training goes on."""

    def finish(self) -> str | None:
        """Save all there is, and return the digest of the state, where it is known."""


class Checkpoints:
    """Takes checkpoints by time and by micro-batches; a context manager that waits for the last.

    Args:
        trainer: What is saved.
        store: Where to.
        writer: Writes to `store`.
        run_log: Gets what was written, and what could not be.
        every: Seconds between checkpoints; 0: none by time.
        every_batches: Also after this many micro-batches; None: none by them.
        parts: What belongs to the checkpoints beside the trainer.
        saved: Events in the newest checkpoint on the disk; None without one.
        shard: Which rank this is of those that save together; this is rank 0.
        announce: Lets the others know whether the last one is taken, where it must be by all of
            them; None: it is taken here alone.
    """

    def __init__(
        self,
        trainer: StreamTrainer,
        store: CheckpointStore,
        writer: CheckpointWriter,
        run_log: RunLog,
        *,
        every: float = 0.0,
        every_batches: int | None = None,
        parts: Sequence[CheckpointPart] = (),
        saved: int | None = None,
        shard: Shard | None = None,
        announce: Callable[[bool], object] | None = None,
    ) -> None:
        self._announce = announce
        self._trainer, self._store, self._writer = trainer, store, writer
        self._run_log, self._parts = run_log, parts
        self._every, self._every_batches = every, every_batches
        self._shard = Shard() if shard is None else shard
        self._taken_at = time.monotonic()
        self._batches = 0
        self._is_pending = False
        self._failures = 0
        self._saved = saved
        self._saved_at: float | None = None
        self.copy_seconds = 0.0
        """How long the training waited for the latest one."""

    @property
    def stats(self) -> WriterStats:
        """What was written so far."""
        return self._writer.stats

    @property
    def saved(self) -> int | None:
        """Events in the newest checkpoint that is known to be on the disk; None without one."""
        return self._saved

    @property
    def age(self) -> float | None:
        """Seconds by which a crash would set the run back; None before the first checkpoint."""
        return None if self._saved_at is None else time.monotonic() - self._saved_at

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):  # it was logged, or something worse ends the run
            self._writer.wait()

    def after_step(self) -> bool:
        """Return whether it is time to take one; one that is late waits for the one under way.

        It is taken where every micro-batch learned has its record: the trainer catches up first.

        Raises:
            OSError: If the disk refused three in a row.
            Unbalanced: If a row got lost.
        """
        self._batches += 1
        for part in self._parts:
            part.after_step()
        if self._writer.busy:
            return False
        self._settle()
        by_time = self._every and time.monotonic() - self._taken_at >= self._every
        by_batches = self._every_batches and self._batches >= self._every_batches
        if not (by_time or by_batches):
            return False
        if self._trainer.num_pending:
            self._trainer.catch_up()
            return False
        return True

    def finish(self) -> str | None:
        """Save all there is, and return the digest of the state that is on the disk.

        What no other rank has heard of is written here, all of it, if it is here.

        Raises:
            OSError: If the disk refuses.
            Unbalanced: If a row got lost.
        """
        try:
            self._writer.wait()
        except OSError as error:
            self._run_log.warning("checkpoint", str(error))
        self._settle()
        is_due = self._saved != self._trainer.position or any(p.changed() for p in self._parts)
        if self._announce is not None:
            self._announce(is_due)
        if is_due:
            failures = self.stats.failures
            self._take(Shard() if self._announce is None else self._shard)
            stats = self._writer.wait()
            self._settle()
            if stats.failures > failures:
                raise OSError(f"the last checkpoint could not be written: {stats.last_error}")
        digest = read_manifest(self._store.entries()[-1].path)["state_sha256"]
        return None if digest is None else str(digest)

    def take(self) -> None:
        """Copy the state, and begin to write it; all ranks that save together do so here.

        Raises:
            OSError: If the disk refused three in a row.
            Unbalanced: If a row got lost.
        """
        self._take(self._shard)

    def _take(self, shard: Shard) -> None:
        """Copy what `shard` keeps of the state, and begin to write it."""
        start = time.monotonic()
        checkpoint = RankCheckpoint({}, shard=shard)
        self._trainer.save(checkpoint)
        for part in self._parts:
            part.save(checkpoint)
        self.copy_seconds = time.monotonic() - start
        self._taken_at, self._batches, self._is_pending = start, 0, True
        self._writer.submit(self._trainer.position, checkpoint)

    def _settle(self) -> None:
        """Do what waits for the checkpoint under way to be on the disk; it no longer is."""
        stats = self.stats
        if stats.failures > self._failures:
            self._failures, self._is_pending = stats.failures, False
            text = f"no checkpoint was written, training continues: {stats.last_error}"
            self._run_log.warning("checkpoint", text)
        if not self._is_pending:
            return
        self._is_pending = False
        self._saved, self._saved_at = stats.last_step, self._taken_at
        for part in self._parts:
            part.saved()
        self._run_log.info(
            "checkpoint",
            f"checkpoint {stats.last_step} written",
            position=stats.last_step,
            bytes=stats.num_bytes,
            seconds=round(stats.seconds, 3),
            copy_seconds=round(self.copy_seconds, 3),
        )
