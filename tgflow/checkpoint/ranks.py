"""Checkpoints written by many ranks together and committed by rank 0."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tgflow.checkpoint.checkpoint import Checkpoint
from tgflow.checkpoint.directory import SUFFIX, Files, Written, read_manifest, write_share
from tgflow.checkpoint.names import (
    CheckpointDurabilityUnknown,
    CheckpointError,
    CheckpointNotCommitted,
)
from tgflow.checkpoint.store import CheckpointStore
from tgflow.durable.errors import DiskFull
from tgflow.durable.fs import RealFs
from tgflow.peers import PeerLost, Peers, RanksDisagree

_SHORTEST, _LONGEST = 0.002, 0.1
"""Seconds between two polls of the store; polls are short, as they block other ranks."""


class Notices:
    """Messages between ranks, posted to a shared store. Thread-safe."""

    def __init__(self, store: Any, peers: Peers, prefix: str) -> None:
        self._store, self._prefix = store, prefix
        self.peers = peers

    def post(self, key: str, word: Any) -> None:
        """Post a JSON-serializable message to all ranks."""
        try:
            self._store.set(self._prefix + key, json.dumps(word))
        except RuntimeError as error:
            raise self._lost(error) from error

    def find(self, *keys: str, by: int | None = None, until: float | None = None) -> Any:
        """Return the message under the first of `keys` that has one; blocks."""
        pause = _SHORTEST
        while True:
            # checked before the poll: the messages of a process are there once it has ended
            is_gone = by is not None and self.peers.is_gone(by)
            try:
                for key in keys:
                    if self._store.check([self._prefix + key]):
                        return json.loads(self._store.get(self._prefix + key))
            except RuntimeError as error:
                raise self._lost(error) from error
            if self.peers.failure is not None:
                raise PeerLost(str(self.peers.failure))
            if is_gone:
                raise PeerLost(f"rank {by} has ended without reporting its files")
            if until is not None and time.monotonic() >= until:
                return None
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST)

    def remove(self, keys: Iterable[str]) -> None:
        """Remove the messages under these keys, if any."""
        try:
            for key in keys:
                self._store.delete_key(self._prefix + key)
        except RuntimeError as error:
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError) -> PeerLost:
        first = str(error).partition("\n")[0]
        return PeerLost(f"rank {self.peers.rank} cannot reach the store of the ranks: {first}")


class Shares:
    """Files of one checkpoint written by the other ranks, for rank 0."""

    def __init__(
        self, notices: Notices, attempt: int, step: int, expected: set[str], timeout: float
    ) -> None:
        self._notices, self._attempt, self._step = notices, attempt, step
        self._expected, self._timeout = expected, timeout
        self._until: float | None = None
        self._found: dict[int, Any] = {}

    @property
    def are_complete(self) -> bool:
        """Whether every rank has posted its files, or its failure."""
        return len(self._found) == self._notices.peers.world - 1

    def announce(self, directory: Path, linkable: Path | None) -> Callable[[], Files]:
        """Start the save on all ranks; return a function that waits and returns their files."""
        name = None if linkable is None else linkable.name
        word = {"step": self._step, "directory": directory.name, "linkable": name}
        self._notices.post(f"{self._attempt}/place", word)
        return lambda: self._collect(directory)

    def _collect(self, directory: Path) -> Files:
        if self._until is None:
            self._until = time.monotonic() + self._timeout
        ranks = range(1, self._notices.peers.world)
        for rank in ranks:
            if rank not in self._found:
                word = self._notices.find(f"{self._attempt}/{rank}", by=rank, until=self._until)
                if word is not None:
                    self._found[rank] = word
        files: Files = {}
        for rank in ranks:
            word = self._found.get(rank, _SILENT)
            if "files" not in word:
                raise failure_of(word, directory.parent, f"rank {rank}: ")
            for name, entry in word["files"].items():
                file, num_bytes = directory / name, entry["bytes"]
                found = file.lstat().st_size if file.exists() else "no such file"
                if found != num_bytes:
                    text = (
                        f"the checkpoint was not written: rank {rank} has written {num_bytes} "
                        f"bytes to {name}, and rank 0 sees {found}"
                    )
                    raise CheckpointNotCommitted(errno.EIO, text, str(directory.parent))
            files |= word["files"]
        names = {name.removesuffix(SUFFIX) for name in files}
        if names != self._expected:
            wrong = ", ".join(sorted(names ^ self._expected)[:3])
            text = f"ranks disagree about the owners of sections: {wrong}"
            raise CheckpointNotCommitted(errno.EIO, text, str(directory.parent))
        return files


_SILENT = {
    "kind": "CheckpointNotCommitted",
    "errno": errno.ETIMEDOUT,
    "text": "the checkpoint was not written: its result did not arrive in time",
}
_KINDS = {kind.__name__: kind for kind in (CheckpointNotCommitted, CheckpointDurabilityUnknown)}


def describe(error: BaseException) -> dict[str, Any]:
    """Describe a failure for other ranks."""
    text = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    number = getattr(error, "errno", None) or errno.EIO
    return {"kind": type(error).__name__, "errno": number, "text": text}


def failure_of(word: Any, directory: Path, who: str = "") -> OSError:
    """Return the checkpoint error for a failure from `describe`."""
    text = who + word["text"]
    if word["kind"] == DiskFull.__name__:
        return DiskFull(text, directory)
    kind = _KINDS.get(word["kind"], CheckpointNotCommitted)
    return kind(word["errno"], text, str(directory))


class LeadingStore:
    """Store of a distributed run at rank 0, for its `CheckpointWriter`.

    Args:
        store: Store of the run.
        notices: Messages between the ranks, used for checkpoints only.
        timeout: Seconds to wait for the other ranks after this rank has written its files.
    """

    def __init__(self, store: CheckpointStore, notices: Notices, timeout: float) -> None:
        self._store, self._notices, self._timeout = store, notices, timeout
        self._attempt = 0
        self._posted: list[str] = []

    def save(self, step: int, checkpoint: Checkpoint) -> Path:
        """Write and commit a checkpoint, once all other ranks have saved at the same step.

        Rank 0 writes a checkpoint with nothing `elsewhere` alone: the others do not save it.

        Raises:
            DiskFull: If a rank has no space; nothing was changed.
            CheckpointNotCommitted: On a disk error, or if a rank has not written its sections in
                time; nothing was changed.
            CheckpointDurabilityUnknown: If it is in place, but may not survive a crash.
            PeerLost: If a rank is gone.
        """
        if not checkpoint.elsewhere:
            return self._store.save(step, checkpoint)
        self._attempt += 1
        shares = Shares(self._notices, self._attempt, step, checkpoint.elsewhere, self._timeout)
        end = f"{self._attempt}/end"
        with suppress(OSError):  # left by an attempt that a rank was too slow for
            self._store.remove_unfinished()
        try:
            path = self._store.save(step, checkpoint, shares.announce)
        except BaseException as error:
            self._notices.post(end, describe(error))
            raise
        finally:
            if shares.are_complete:  # all ranks have joined this attempt
                self._notices.remove(self._posted)
                self._posted = []
            keys = ("place", "end", *range(1, self._notices.peers.world))
            self._posted += [f"{self._attempt}/{key}" for key in keys]
        self._notices.post(end, {"name": path.name})
        return path

    def size_of(self, path: Path) -> int:
        """Return the total size in bytes of a checkpoint written by `save`."""
        return self._store.size_of(path)


class FollowingStore:
    """Store of a distributed run at ranks other than 0; see `LeadingStore`."""

    def __init__(self, directory: Path, notices: Notices, *, fs: RealFs | None = None) -> None:
        self._directory, self._notices = Path(directory), notices
        self._fs: RealFs = RealFs() if fs is None else fs
        self._attempt = 0
        self._num_bytes = 0

    def save(self, step: int, checkpoint: Checkpoint) -> Path:
        """Write this rank's sections, and wait until rank 0 has committed them."""
        self._attempt += 1
        end = f"{self._attempt}/end"
        word = self._notices.find(f"{self._attempt}/place", end)
        if "directory" in word:
            self._write(word, step, checkpoint)
            word = self._notices.find(end)
        if "name" not in word:
            raise failure_of(word, self._directory)
        return self._directory / Path(word["name"]).name

    def size_of(self, path: Path) -> int:
        """Return the bytes that this rank has written to the latest checkpoint."""
        return self._num_bytes

    def _write(self, place: Any, step: int, checkpoint: Checkpoint) -> None:
        rank = self._notices.peers.rank
        key = f"{self._attempt}/{rank}"
        try:
            if place["step"] != step:
                raise RanksDisagree(f"rank 0 saves step {place['step']}, rank {rank} step {step}")
            directory = self._directory / Path(place["directory"]).name
            linkable = None
            if place["linkable"] is not None:
                path = self._directory / Path(place["linkable"]).name
                with suppress(CheckpointError, OSError):  # then all files are written
                    linkable = Written(path, read_manifest(path))
            files = write_share(self._fs, directory, checkpoint, linkable)
        except BaseException as error:
            self._notices.post(key, describe(error))
            if not isinstance(error, OSError):
                raise
        else:
            self._num_bytes = sum(entry["bytes"] for entry in files.values())
            self._notices.post(key, {"files": files})
