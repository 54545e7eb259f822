"""Checkpoints written by many ranks together and committed by rank 0.

A joint save is up to three collectives of the group "save": rank 0 broadcasts the directory, all
send it the entries of their files, and it broadcasts the result.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tgflow.base.peers import PeerLost, Peers, RanksDisagree
from tgflow.checkpoint.checkpoint import Checkpoint
from tgflow.checkpoint.directory import SUFFIX, Files, Written, read_manifest, write_share
from tgflow.checkpoint.durable.errors import DiskFull
from tgflow.checkpoint.durable.fs import RealFs
from tgflow.checkpoint.names import (
    CheckpointDurabilityUnknown,
    CheckpointError,
    CheckpointNotCommitted,
)
from tgflow.checkpoint.store import CheckpointStore
from tgflow.ranks.parcel import broadcast_json, collect_json


class _Shares:
    def __init__(self, peers: Peers, step: int, expected: set[str]) -> None:
        self._peers, self._step, self._expected = peers, step, expected
        self._words: list[Any] = []

    def announce(self, directory: Path, linkable: Path | None) -> Callable[[], Files]:
        """Start the save on all ranks; return a function that waits and returns their files."""
        name = None if linkable is None else linkable.name
        word = {"step": self._step, "directory": directory.name, "linkable": name}
        broadcast_json(self._peers, word, group="save")
        return lambda: self._collect(directory)

    def _collect(self, directory: Path) -> Files:
        if not self._words:  # called again after a failure
            self._words = collect_json(self._peers, None, group="save")
        files: Files = {}
        for rank, word in enumerate(self._words[1:], 1):
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
    """Store of a distributed run at rank 0, for its `CheckpointWriter`."""

    def __init__(self, store: CheckpointStore, peers: Peers) -> None:
        self._store, self._peers = store, peers

    def save(self, step: int, checkpoint: Checkpoint) -> Path:
        """Write and commit a checkpoint, once all other ranks have saved at the same step.

        Rank 0 writes a checkpoint with nothing `elsewhere` alone: the others do not save it. Raises
        as `CheckpointStore.save`, for any rank; PeerLost if one has not written within the timeout.
        """
        if not checkpoint.elsewhere:
            return self._store.save(step, checkpoint)
        shares = _Shares(self._peers, step, checkpoint.elsewhere)
        try:
            path = self._store.save(step, checkpoint, shares.announce)
        except BaseException as error:
            with suppress(PeerLost):  # `error` is the cause, or the same
                broadcast_json(self._peers, describe(error), group="save")
            raise
        broadcast_json(self._peers, {"name": path.name}, group="save")
        return path

    def size_of(self, path: Path) -> int:
        """Return the total size in bytes of a checkpoint written by `save`."""
        return self._store.size_of(path)


class FollowingStore:
    """Store of a distributed run at ranks other than 0; see `LeadingStore`."""

    def __init__(self, directory: Path, peers: Peers, *, fs: RealFs | None = None) -> None:
        self._directory, self._peers = Path(directory), peers
        self._fs: RealFs = RealFs() if fs is None else fs
        self._num_bytes = 0

    def save(self, step: int, checkpoint: Checkpoint) -> Path:
        """Write this rank's sections, and wait until rank 0 has committed them."""
        word = broadcast_json(self._peers, group="save")
        if "directory" in word:
            self._write(word, step, checkpoint)
            word = broadcast_json(self._peers, group="save")
        if "name" not in word:
            raise failure_of(word, self._directory)
        return self._directory / Path(word["name"]).name

    def size_of(self, path: Path) -> int:
        """Return the bytes that this rank has written to the latest checkpoint."""
        return self._num_bytes

    def _write(self, place: Any, step: int, checkpoint: Checkpoint) -> None:
        try:
            if place["step"] != step:
                text = f"rank 0 saves step {place['step']}, rank {self._peers.rank} step {step}"
                raise RanksDisagree(text)
            directory = self._directory / Path(place["directory"]).name
            linkable = None
            if place["linkable"] is not None:
                path = self._directory / Path(place["linkable"]).name
                with suppress(CheckpointError, OSError):  # then all files are written
                    linkable = Written(path, read_manifest(path))
            files = write_share(self._fs, directory, checkpoint, linkable)
        except BaseException as error:
            collect_json(self._peers, describe(error), group="save")
            if not isinstance(error, OSError):
                raise
        else:
            self._num_bytes = sum(entry["bytes"] for entry in files.values())
            collect_json(self._peers, {"files": files}, group="save")
