"""What the other ranks write of a checkpoint, as rank 0 learns of it, and how failures travel."""

from __future__ import annotations

import errno
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tgflow.checkpoint.errors import CheckpointDurabilityUnknown, CheckpointNotCommitted
from tgflow.checkpoint.manifest import SUFFIX, Files
from tgflow.checkpoint.notices import Notices
from tgflow.durable.errors import DiskFull


@dataclass(frozen=True, slots=True)
class AttemptKeys:
    """The keys of an attempt to write a checkpoint; the same attempt has the same number."""

    attempt: int

    @property
    def place(self) -> str:
        """Where to write, by rank 0."""
        return f"{self.attempt}/place"

    @property
    def end(self) -> str:
        """What has become of it, by rank 0."""
        return f"{self.attempt}/end"

    def of(self, rank: int) -> str:
        """Return the key of what a rank has written."""
        return f"{self.attempt}/{rank}"

    def all(self, world: int) -> list[str]:
        """Return all of them."""
        return [self.place, self.end, *(self.of(rank) for rank in range(1, world))]


class Shares:
    """What the other ranks write of one checkpoint: the `Others` of rank 0."""

    def __init__(
        self, notices: Notices, attempt: int, step: int, expected: set[str], timeout: float
    ) -> None:
        self._notices, self._key, self._step = notices, AttemptKeys(attempt), step
        self._expected, self._timeout = expected, timeout
        self._until: float | None = None
        self._is_announced = False
        self._found: dict[int, Any] = {}

    @property
    def are_complete(self) -> bool:
        """Whether every rank has said what it has written, or why not."""
        return len(self._found) == self._notices.peers.world - 1

    def announce(self, directory: Path, linkable: Path | None) -> None:
        """Have all ranks begin."""
        name = None if linkable is None else linkable.name
        word = {"step": self._step, "directory": directory.name, "linkable": name}
        self._notices.post(self._key.place, word)
        self._is_announced = True

    def wait(self) -> None:
        """Return once all ranks have said how it went, or some have not in time.

        Raises:
            PeerLost: If a rank is gone.
        """
        if not self._is_announced:
            return
        if self._until is None:
            self._until = time.monotonic() + self._timeout
        for rank in range(1, self._notices.peers.world):
            if rank not in self._found:
                word = self._notices.find(self._key.of(rank), by=rank, until=self._until)
                if word is not None:
                    self._found[rank] = word

    def files(self, directory: Path) -> Files:
        """Return the files of all other ranks.

        Raises:
            OSError: If a rank has failed, or was not heard of; or a file is not there.
        """
        files: Files = {}
        for rank in range(1, self._notices.peers.world):
            word = self._found.get(rank, _SILENT)
            if "files" not in word:
                raise failure_of(word, directory.parent, f"rank {rank}: ")
            for name, entry in word["files"].items():
                _check_file(directory / name, entry["bytes"], rank)
            files |= word["files"]
        names = {name.removesuffix(SUFFIX) for name in files}
        if names != self._expected:
            wrong = ", ".join(sorted(names ^ self._expected)[:3])
            text = f"ranks disagree about which sections are whose: {wrong}"
            raise CheckpointNotCommitted(errno.EIO, text, str(directory.parent))
        return files


_SILENT = {
    "kind": "CheckpointNotCommitted",
    "errno": errno.ETIMEDOUT,
    "text": "the checkpoint was not written: nothing was heard of it in time",
}


def _check_file(file: Path, num_bytes: int, rank: int) -> None:
    """Raise unless this rank sees a file as another one has written it."""
    try:
        found = file.lstat().st_size
    except FileNotFoundError:
        found = None
    if found != num_bytes:
        text = (
            f"the checkpoint was not written: rank {rank} has written {num_bytes} bytes to "
            f"{file.name}, and rank 0 sees {'no such file' if found is None else found}"
        )
        raise CheckpointNotCommitted(errno.EIO, text, str(file.parent.parent))


_KINDS = {kind.__name__: kind for kind in (CheckpointNotCommitted, CheckpointDurabilityUnknown)}


def describe(error: BaseException) -> dict[str, Any]:
    """Return what other ranks hear of a failure."""
    text = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    number = getattr(error, "errno", None) or errno.EIO
    return {"kind": type(error).__name__, "errno": number, "text": text}


def failure_of(word: Any, directory: Path, who: str = "") -> OSError:
    """Return the failure that `describe` has described, as one of a checkpoint."""
    text = who + word["text"]
    if word["kind"] == DiskFull.__name__:
        return DiskFull(text, directory)
    kind = _KINDS.get(word["kind"], CheckpointNotCommitted)
    return kind(word["errno"], text, str(directory))
