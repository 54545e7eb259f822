"""Checkpoints that many ranks write together, and that one of them commits.

All ranks save at the same position, each to a `RankCheckpoint`, which keeps what is this rank's to
write. Their writers, beside the training, write that into one temporary directory, sync it, and
post names, sizes and digests; rank 0 waits for all, writes the manifest and renames the directory.
If anything fails anywhere there is no checkpoint, and every rank's writer counts one failure.

Which files there are, and what is in them, does not depend on how many ranks there are.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from tgflow.checkpoint import directory as directories
from tgflow.checkpoint.content import Checkpoint
from tgflow.checkpoint.directory import Written
from tgflow.checkpoint.errors import CheckpointError
from tgflow.checkpoint.notices import Notices
from tgflow.checkpoint.shares import AttemptKeys, Shares, describe, failure_of
from tgflow.checkpoint.store import CheckpointStore
from tgflow.durable.fs import Fs, RealFs
from tgflow.peers import RanksDisagree


class LeadingStore:
    """The checkpoints of a run of many ranks, at rank 0: for its `CheckpointWriter`.

    Args:
        store: The run's.
        notices: Of the ranks, and for this alone.
        timeout: Seconds to wait for the other ranks, once this one has written what is its own.
    """

    def __init__(self, store: CheckpointStore, notices: Notices, timeout: float) -> None:
        self._store, self._notices, self._timeout = store, notices, timeout
        self._attempt = 0
        self._posted: list[str] = []

    def save(self, step: int, checkpoint: Checkpoint) -> Path:
        """Write and commit a checkpoint, once all other ranks have saved at the same step.

        One that has nothing elsewhere rank 0 writes by itself: the others do not save it.

        Raises:
            DiskFull: If there is no room at some rank; nothing was changed.
            CheckpointNotCommitted: If a disk refuses, or a rank has not written its sections in
                time; nothing was changed.
            CheckpointDurabilityUnknown: If it is in place, but a crash may undo that.
            PeerLost: If a rank is gone.
        """
        if not checkpoint.elsewhere:
            return self._store.save(step, checkpoint)
        self._attempt += 1
        shares = Shares(self._notices, self._attempt, step, checkpoint.elsewhere, self._timeout)
        end = AttemptKeys(self._attempt).end
        with suppress(OSError):  # of an attempt that a rank was too slow for
            self._store.remove_unfinished()
        try:
            path = self._store.save(step, checkpoint, shares)
        except BaseException as error:
            self._notices.post(end, describe(error))
            raise
        finally:
            self._tidy(shares)
        self._notices.post(end, {"name": path.name})
        return path

    def size_of(self, path: Path) -> int:
        """Return the size in bytes of a checkpoint that `save` has written, all of it."""
        return self._store.size_of(path)

    def _tidy(self, shares: Shares) -> None:
        """Take down what all ranks have read: they have come to this attempt."""
        if shares.are_complete:
            self._notices.remove(self._posted)
            self._posted = []
        self._posted += AttemptKeys(self._attempt).all(self._notices.peers.world)


class FollowingStore:
    """The checkpoints of a run of many ranks, at the ranks after the first, as `LeadingStore`.

    Args:
        directory: Where rank 0 has them; the same directory, perhaps on another host.
        notices: As `LeadingStore`.
        fs: File operations.
    """

    def __init__(self, directory: Path, notices: Notices, *, fs: Fs | None = None) -> None:
        self._directory, self._notices = Path(directory), notices
        self._fs: Fs = RealFs() if fs is None else fs
        self._attempt = 0
        self._num_bytes = 0

    def save(self, step: int, checkpoint: Checkpoint) -> Path:
        """Write this rank's sections, and wait until rank 0 has committed them.

        Raises:
            OSError: As `LeadingStore.save`, whichever rank has failed.
            PeerLost: If a rank is gone.
            RanksDisagree: If rank 0 saves another step.
        """
        self._attempt += 1
        key = AttemptKeys(self._attempt)
        word = self._notices.find(key.place, key.end)
        if "directory" in word:
            self._write(key, word, step, checkpoint)
            word = self._notices.find(key.end)
        if "name" not in word:
            raise failure_of(word, self._directory)
        return self._directory / Path(word["name"]).name

    def size_of(self, path: Path) -> int:
        """Return the size in bytes of what this rank has in the latest checkpoint."""
        return self._num_bytes

    def _write(self, key: AttemptKeys, place: Any, step: int, checkpoint: Checkpoint) -> None:
        """Write, and post what was written, or why it was not."""
        rank = self._notices.peers.rank
        try:
            if place["step"] != step:
                raise RanksDisagree(f"rank 0 saves step {place['step']}, rank {rank} step {step}")
            directory = self._directory / Path(place["directory"]).name
            linkable = self._linkable(place["linkable"])
            files = directories.write_share(self._fs, directory, checkpoint, linkable)
        except BaseException as error:
            self._notices.post(key.of(rank), describe(error))
            if not isinstance(error, OSError):
                raise
        else:
            self._num_bytes = sum(entry["bytes"] for entry in files.values())
            self._notices.post(key.of(rank), {"files": files})

    def _linkable(self, name: str | None) -> Written | None:
        """Return the checkpoint whose sealed files are shared; None if it cannot be read here."""
        if name is not None:
            path = self._directory / Path(name).name
            with suppress(CheckpointError, OSError):
                return Written(path, directories.read_manifest(path))
        return None
