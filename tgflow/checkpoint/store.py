"""Checkpoint store of a run: resumes from the newest valid one, keeps older ones as fallback."""

from __future__ import annotations

import errno
import threading
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

from tgflow.base.free_memory import release_free
from tgflow.checkpoint import directory as directories
from tgflow.checkpoint.checkpoint import Checkpoint
from tgflow.checkpoint.directory import Announce, Manifest, Written, read_manifest
from tgflow.checkpoint.durable.fs import RealFs, make_directories
from tgflow.checkpoint.durable.lock import RunLock, read_token
from tgflow.checkpoint.names import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointVersion,
    Entry,
    NoValidCheckpoint,
    checkpoint_name,
    list_checkpoints,
)
from tgflow.cuda.device import StreamEvent, device_of, has_device

CORRUPT = "corrupt-"


class CheckpointStore:
    """The checkpoints of a run. Only one process may have it open (see `RunLock`).

    Args:
        directory: Directory of the checkpoints; created if missing. Unfinished ones left by a crash
            are removed.
        keep: Number of latest checkpoints kept. They share the files of sealed sections, which are
            written once.
        max_bytes: Maximum total size of a checkpoint; None allows what fits the memory, see `load`.
        lock: Lock of the run, which another machine may take over; None: there is no other writer.
    """

    def __init__(
        self,
        directory: Path,
        *,
        keep: int = 3,
        max_bytes: int | None = None,
        fs: RealFs | None = None,
        lock: RunLock | None = None,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.directory = Path(directory)
        self.problems: list[str] = []
        """Damage found, and failed cleanups."""
        self._keep, self._max_bytes = keep, max_bytes
        self._fs: RealFs = RealFs() if fs is None else fs
        self._last: Written | None = None
        self._lock = lock
        make_directories(self._fs, self.directory)
        for path in self.directory.glob(f"{directories.TEMPORARY}*"):  # of interrupted saves
            self._fs.remove_directory(path)

    def save(self, step: int, checkpoint: Checkpoint, announce: Announce | None = None) -> Path:
        """Write a checkpoint, then remove those no longer kept; returns its directory.

        An existing one of this step is kept if it is identical, and otherwise until the new one is
        on disk.

        Args:
            step: Its key; the largest is the newest.
            checkpoint: The contents.
            announce: Makes other processes write their files.

        Raises:
            DiskFull: If there is no space; nothing was changed.
            Fenced: If another machine has taken over the run; nothing was changed.
            CheckpointNotCommitted: On a disk error; nothing was changed.
            CheckpointDurabilityUnknown: If it is in place, but may not survive a crash.
            ValueError: If a section name is invalid, or `meta` is not JSON.
        """
        target = self.directory / checkpoint_name(step)
        token = 0 if self._lock is None else self._lock.token
        noted = {"token": token} if token else {}
        with directories.prepared(
            self._fs, target, checkpoint, self._last, announce, **noted
        ) as temporary:
            manifest = read_manifest(temporary)
            self._check_sealed(manifest)
            same = self._same(step, manifest)
            if same is not None:
                self._fs.remove_directory(temporary)
                self._last = same
                return same.path
            attempts = [entry.attempt for entry in self.entries() if entry.step == step]
            target = self.directory / checkpoint_name(step, max(attempts, default=-1) + 1)
            if self._lock is not None:
                self._lock.check(now=True)
            self._fs.rename(temporary, target)
        directories.sync_names(self._fs, target)
        self._last = Written(target, manifest)
        self._prune()
        return target

    def newest(self) -> tuple[int, Checkpoint] | None:
        """Return step and content of the newest valid checkpoint; None if there never was any.

        Damaged ones are renamed to `corrupt-...` and listed in `problems`; so are those of a
        process that had lost the run: an earlier checkpoint has a larger token.

        Raises:
            NoValidCheckpoint: If there are some, but all are damaged.
            UntrustedCheckpoint: If one has content that tgflow never writes.
            CheckpointVersion: If this tgflow does not support the format of one.
        """
        for entry in reversed(self.entries()):
            try:
                checkpoint, manifest = directories.read(entry.path, self._max_bytes)
                if read_token(manifest) < self._largest_token(entry):
                    raise CheckpointDamaged(
                        f"{entry.path} was written by a process that had lost the run"
                    )
            except CheckpointDamaged as error:
                self._set_aside(entry.path, error)
                continue
            self._last = Written(entry.path, manifest)
            return entry.step, checkpoint
        corrupt = sorted(path.name for path in self.directory.glob(f"{CORRUPT}*"))
        if corrupt:
            raise NoValidCheckpoint(
                f"{self.directory} has no valid checkpoint, only {', '.join(corrupt[-3:])}; bring "
                f"one back from a copy, or start over elsewhere. {' '.join(self.problems)}"
            )
        return None

    def _largest_token(self, last: Entry) -> int:
        """Return the largest token of the checkpoints before `last`."""
        found = [0]
        for entry in takewhile(lambda entry: entry != last, self.entries()):
            with suppress(CheckpointError, OSError):
                found.append(read_token(read_manifest(entry.path)))
        return max(found)

    def entries(self) -> list[Entry]:
        """Return the existing checkpoints, as `list_checkpoints` does."""
        return list_checkpoints(self.directory)

    def oldest_kept(self) -> dict[str, Any] | None:
        """Return the meta of the oldest checkpoint with a readable manifest; None without any.

        Data that only earlier states need, such as the log before its position, may be removed.
        """
        for entry in self.entries():
            with suppress(CheckpointError):
                meta: dict[str, Any] = read_manifest(entry.path)["meta"]
                return meta
        return None

    def size_of(self, path: Path) -> int:
        """Return the bytes of a checkpoint's tensors, linked files included."""
        return sum(entry["bytes"] for entry in read_manifest(path)["files"].values())

    def _same(self, step: int, manifest: Manifest) -> Written | None:
        """Return a valid checkpoint of this step with the content of `manifest`."""
        for entry in self.entries():
            if entry.step != step:
                continue
            try:
                found = directories.read(entry.path, self._max_bytes)[1]
            except CheckpointVersion:
                raise
            except CheckpointError as error:
                self._set_aside(entry.path, error)
                continue
            if _content(found) == _content(manifest):
                return Written(entry.path, found)
        return None

    def _check_sealed(self, manifest: Manifest) -> None:
        """Raise if a sealed file differs from the one of the last checkpoint.

        A file that cannot be linked is read from the mapped old one, which the disk may have
        changed.
        """
        before = {} if self._last is None else self._last.manifest["files"]
        for name, entry in manifest["files"].items():
            if entry["sealed"] and before.get(name, entry)["sha256"] != entry["sha256"]:
                text = f"{name} has changed on its disk"
                raise OSError(errno.EIO, text, str(self.directory))

    def _prune(self) -> None:
        """Remove checkpoints no longer kept; a failure is only added to `problems`."""
        entries = self.entries()
        newest = [*{entry.step: entry for entry in entries}.values()]  # the last of each step
        kept = newest[-self._keep :]
        for entry in entries:
            if entry not in kept:
                self._remove(entry.path)
        corrupt = sorted(self.directory.glob(f"{CORRUPT}*"), key=lambda path: path.stat().st_mtime)
        for path in corrupt[: -self._keep]:
            self._remove(path)

    def _remove(self, path: Path) -> None:
        """Remove a directory such that a crash never leaves a partial one under its name."""
        gone = path.with_name(f"{directories.TEMPORARY}gone-{path.name}")
        try:
            self._fs.rename(path, gone)
            self._fs.sync_directory(self.directory)
            self._fs.remove_directory(gone)
        except OSError as error:
            self.problems.append(f"{path.name} could not be removed: {error}")

    def _set_aside(self, path: Path, error: CheckpointError) -> None:
        target, number = self.directory / f"{CORRUPT}{path.name}", 1
        while target.exists():
            target, number = self.directory / f"{CORRUPT}{path.name}.{number}", number + 1
        self._fs.rename(path, target)
        self._fs.sync_directory(self.directory)
        self.problems.append(f"{path.name} was set aside as {target.name}: {error}.")


def _content(manifest: Manifest) -> dict[str, Any]:
    files = {name: entry["sha256"] for name, entry in manifest["files"].items()}
    return {"files": files, "meta": manifest["meta"]}


class Store(Protocol):
    """Target of a `CheckpointWriter`: `CheckpointStore`, or a store of many ranks."""

    def save(self, step: int, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint; return its path."""

    def size_of(self, path: Path) -> int:
        """Return the size in bytes of a checkpoint written by `save`."""


@dataclass(frozen=True, slots=True)
class WriterStats:
    """Statistics of the writer."""

    last_step: int | None = None
    """Step of the last checkpoint on disk."""
    last_path: Path | None = None
    seconds: float = 0.0
    """Write time of the last one."""
    begun: float | None = None
    """`time.monotonic` as its write began."""
    num_bytes: int = 0
    """Size of the last one, linked files included."""
    saved: int = 0
    failures: int = 0
    failures_in_a_row: int = 0
    last_error: str | None = None


class CheckpointWriter:
    """Saves to `store` in a background thread; at most one checkpoint is in progress.

    A disk error is a warning and counted; after `max_failures` in a row `submit` or `wait` raises
    the last one, as progress would be lost. All other errors are raised at once.

    Args:
        max_failures: Number of consecutive failures that stop the training.
    """

    def __init__(self, store: Store, *, max_failures: float = 3) -> None:
        self._store, self._max_failures = store, max_failures
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.stats = WriterStats()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is in progress."""
        return self._thread is not None and self._thread.is_alive()

    def submit(self, step: int, checkpoint: Checkpoint) -> bool:
        """Start a save as `CheckpointStore.save`, and return at once; False, if one is in progress.

        The checkpoint's tensors must not change afterwards. Raises the error of the last save, if
        the last `max_failures` have failed.
        """
        if self.busy:
            return False
        self.wait()
        # the thread's stream is another one than that of the copies
        tensors = (x for section in checkpoint.sections.values() for x in section.values())
        devices = {x.device for x in tensors if has_device(x.device)}
        copied = [device_of(device).record_event() for device in devices]
        self._thread = threading.Thread(
            target=self._save_and_free,
            args=([(step, checkpoint, copied)],),
            name="checkpoint-writer",
            daemon=True,
        )
        self._thread.start()
        return True

    def wait(self) -> WriterStats:
        """Block until no save is in progress."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self.stats

    def _save_and_free(self, work: list[tuple[int, Checkpoint, Sequence[StreamEvent]]]) -> None:
        self._save(*work.pop())  # the copies end with it: kept, their memory would grow each time
        release_free()

    def _save(self, step: int, checkpoint: Checkpoint, copied: Sequence[StreamEvent]) -> None:
        start, stats = time.monotonic(), self.stats
        try:
            for event in copied:
                event.synchronize()
            path = self._store.save(step, checkpoint)
            for call in checkpoint.committed:
                call(path)
            self.stats = replace(
                stats,
                last_step=step,
                last_path=path,
                seconds=time.monotonic() - start,
                begun=start,
                num_bytes=self._store.size_of(path),
                saved=stats.saved + 1,
                failures_in_a_row=0,
            )
        except OSError as error:
            in_a_row = stats.failures_in_a_row + 1
            self.stats = replace(
                stats,
                failures=stats.failures + 1,
                failures_in_a_row=in_a_row,
                last_error=str(error),
            )
            if in_a_row >= self._max_failures:
                self._error = error
                return
            text = f"no checkpoint at step {step}: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=1)
        except BaseException as error:
            self._error = error
