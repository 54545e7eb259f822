"""Writes checkpoints beside the training, one at a time."""

from __future__ import annotations

import threading
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from tgflow.checkpoint.content import Checkpoint

MAX_FAILURES = 3
"""In a row; then the training stops, as its progress would be lost."""


class Store(Protocol):
    """Where checkpoints are written: `CheckpointStore`, or what spreads them over more places."""

    def save(self, step: int, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint; return where it is.

        Raises:
            OSError: If the disk refuses; earlier checkpoints are as before.
        """
        ...

    def size_of(self, path: Path) -> int:
        """Return the size in bytes of a checkpoint that `save` has written."""
        ...


@dataclass(frozen=True, slots=True)
class WriterStats:
    """What the writer has done so far."""

    last_step: int | None = None
    """Of the last checkpoint that is on the disk."""
    last_path: Path | None = None
    seconds: float = 0.0
    """How long the last one took."""
    num_bytes: int = 0
    """Size of the last one, linked files included."""
    saved: int = 0
    failures: int = 0
    failures_in_a_row: int = 0
    last_error: str | None = None


class CheckpointWriter:
    """Saves to `store` in a thread of its own; at most one checkpoint is under way.

    That the disk refuses is a warning and counted; three times in a row is an error, which
    `submit` or `wait` raises. Anything else that goes wrong they raise at once.

    Args:
        store: Used by nobody else meanwhile.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.stats = WriterStats()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is under way."""
        return self._thread is not None and self._thread.is_alive()

    def submit(self, step: int, checkpoint: Checkpoint) -> bool:
        """Begin to save, and return at once; False, and nothing is done, while one is under way.

        Args:
            step: As in `CheckpointStore.save`.
            checkpoint: Nobody may change its tensors from now on.

        Raises:
            OSError: If the last three have failed; it is the last one's.
        """
        if self.busy:
            return False
        self.wait()
        self._thread = threading.Thread(
            target=self._save, args=(step, checkpoint), name="checkpoint-writer", daemon=True
        )
        self._thread.start()
        return True

    def wait(self) -> WriterStats:
        """Return once nothing is under way.

        Raises:
            OSError: As `submit`.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self.stats

    def _save(self, step: int, checkpoint: Checkpoint) -> None:
        start = time.perf_counter()
        try:
            path = self._store.save(step, checkpoint)
            self._count_saved(step, path, time.perf_counter() - start)
        except OSError as error:
            self._count_failure(step, error)
        except BaseException as error:
            self._error = error

    def _count_saved(self, step: int, path: Path, seconds: float) -> None:
        self.stats = replace(
            self.stats,
            last_step=step,
            last_path=path,
            seconds=seconds,
            num_bytes=self._store.size_of(path),
            saved=self.stats.saved + 1,
            failures_in_a_row=0,
        )

    def _count_failure(self, step: int, error: OSError) -> None:
        s = self.stats
        self.stats = replace(
            s,
            failures=s.failures + 1,
            failures_in_a_row=s.failures_in_a_row + 1,
            last_error=str(error),
        )
        if self.stats.failures_in_a_row >= MAX_FAILURES:
            self._error = error
        else:
            warnings.warn(f"no checkpoint at step {step}: {error}", RuntimeWarning, stacklevel=2)
