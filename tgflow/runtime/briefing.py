"""What rank 0 tells the others before they learn together: which run it is, and where it stands.

Rank 0 alone reads the command's directory and stream; the others have it all from here, and see the
same files.
"""

from __future__ import annotations

import errno
import hashlib
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Self

import torch

from tgflow.checkpoint import Checkpoint, CheckpointDamaged, load
from tgflow.choices import Direction
from tgflow.config import Config, plain, replaced
from tgflow.distributed.feed import LeaderFailed
from tgflow.distributed.parcel import broadcast_json
from tgflow.distributed.segment import Cause
from tgflow.peers import Alone, PeerLost, Peers
from tgflow.runtime.directory import RunDirectory, SettingChange
from tgflow.runtime.files import RunFiles
from tgflow.units import parse_bytes

RANKS = "ranks"
"""The folder of what ranks other than 0 leave in a run's directory."""
SEEN_WITHIN = 10.0
"""Seconds in which a file of rank 0 must be seen by all."""
_MARK = ".shared"
_MANIFEST = "manifest.json"
_REFUSED = {errno.EROFS, errno.EACCES, errno.EPERM}


class NotShared(FileNotFoundError):
    """A rank does not see the run's directory, or may not write there."""


class _Access(IntEnum):
    """What a rank can do in the run's directory."""

    NONE = 0
    READ = 1
    WRITE = 2


@dataclass(frozen=True, slots=True)
class Briefing:
    """A run, as the other ranks know it from rank 0.

    Args:
        path: The run's directory.
        settings: Those that the run goes on with, by section.
        changed: In what they differ from those before.
        resumed: Whether there is a run to resume.
        checkpoint: The name of the checkpoint to resume from; None starts.
        digest: SHA-256 of its manifest.
        unit: What a tick of the stream is.
        x_dim: Width of the stream's features.
        node_x_dim: Width of those of its nodes.
        direction: How events become edges.
        mark: What the file says that all must see.
    """

    path: str
    settings: dict[str, Any]
    changed: Sequence[Sequence[Any]]
    resumed: bool
    checkpoint: str | None
    digest: str | None
    unit: str
    x_dim: int
    node_x_dim: int
    direction: Direction
    mark: str

    @classmethod
    def of(
        cls,
        directory: RunDirectory,
        checkpoint: Path | None,
        *,
        unit: str,
        x_dim: int,
        node_x_dim: int,
        direction: Direction,
    ) -> Self:
        """Return what rank 0 knows of its run.

        Args:
            directory: Taken.
            checkpoint: What to resume from; None starts.
            unit: What a tick of the stream is.
            x_dim: Width of the stream's features.
            node_x_dim: Width of those of its nodes.
            direction: How events become edges.
        """
        return cls(
            path=str(directory.path.resolve()),
            settings=plain(directory.config),
            changed=[astuple(change) for change in directory.changed],
            resumed=directory.resumed,
            checkpoint=None if checkpoint is None else checkpoint.name,
            digest=None if checkpoint is None else _digest(checkpoint),
            unit=unit,
            x_dim=x_dim,
            node_x_dim=node_x_dim,
            direction=direction,
            mark=secrets.token_hex(16),
        )

    @property
    def config(self) -> Config:
        """The settings."""
        return config_of(self.settings)

    def directory(self) -> RunDirectory:
        """Return the run's directory, which rank 0 has taken."""
        changed = [SettingChange(*change) for change in self.changed]
        files = RunFiles(Path(self.path), resumed=True)
        return RunDirectory(files, self.config, changed, self.resumed, lock=None)

    def load_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint to resume from, as this rank sees it; None without one.

        Raises:
            CheckpointDamaged: If it is another one than rank 0 sees, or damaged: what is of a part
                of ids, or sealed, raises it when it is read.
            UntrustedCheckpoint: If it is larger than the settings allow.
        """
        if self.checkpoint is None:
            return None
        path = Path(self.path) / "checkpoints" / self.checkpoint
        limit = self.config.checkpoint.max_checkpoint_bytes
        most = None if limit is None else parse_bytes(limit)
        checkpoint = load(path, max_bytes=most, check_all=False)
        if _digest(path) != self.digest:
            raise CheckpointDamaged(f"{path} is another one than rank 0 sees")
        return checkpoint

    @property
    def mark_file(self) -> Path:
        """The file that all must see."""
        return Path(self.path) / RANKS / _MARK


class Lead:
    """What rank 0 owes the others until they know the run: a briefing, or why there is none.

    A context manager around all that may fail before `brief`.

    Args:
        peers: The ranks; this is rank 0 of them, or the only one.
    """

    def __init__(self, peers: Peers | None = None) -> None:
        self.peers: Peers = Alone() if peers is None else peers
        self._is_over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not self._is_over and self.peers.failure is None:
            with suppress(PeerLost):  # who is gone needs none, and `error` is what ends this rank
                broadcast_json(self.peers, {"failure": asdict(Cause.of(error))})

    def brief(self, briefing: Briefing) -> None:
        """Let all others know the run.

        Raises:
            NotShared: If another rank does not see its directory, or may not write there.
            OSError: If this rank cannot.
        """
        if self.peers.world == 1:
            return
        briefing.mark_file.parent.mkdir(exist_ok=True)
        briefing.mark_file.write_text(briefing.mark)
        self.send_words(asdict(briefing))
        _check_shared(self.peers, briefing, _Access.WRITE)

    def send_words(self, words: Any) -> None:
        """Let all others know something that is less than a run: plain values."""
        self._is_over = True
        broadcast_json(self.peers, {"words": words})


def hear(peers: Peers) -> Briefing:
    """Return what rank 0 sends by `Lead.brief`, on any other rank; waits for it.

    Raises:
        LeaderFailed: If it cannot start or resume the run.
        NotShared: If any rank does not see the run's directory, or may not write there.
        PeerLost: If rank 0 is gone.
    """
    briefing = Briefing(**hear_words(peers))
    _check_shared(peers, briefing, _find_access(briefing.mark_file, briefing.mark, peers.rank))
    return briefing


def hear_words(peers: Peers) -> Any:
    """Return what rank 0 sends by `Lead.send_words`, on any other rank; waits for it.

    Raises:
        LeaderFailed: If it failed before.
        PeerLost: If it is gone.
    """
    said = broadcast_json(peers)
    if "failure" in said:
        raise LeaderFailed(Cause(**said["failure"]))
    return said["words"]


def config_of(settings: Mapping[str, Mapping[str, Any]]) -> Config:
    """Return the settings that `tgflow.config.plain` made into `settings`."""
    values = {
        f"{section}.{name}": value
        for section, found in settings.items()
        for name, value in found.items()
    }
    return replaced(Config(), values)


def _is_seen(file: Path, mark: str) -> bool:
    """Return whether a file has this text; a file system may take a while to show it."""
    deadline = time.monotonic() + SEEN_WITHIN
    while True:
        try:
            if file.read_text() == mark:
                return True
        except OSError:
            pass
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)


def _find_access(file: Path, mark: str, rank: int) -> _Access:
    """Return what this rank can do beside a file that has this text.

    A disk that is full is not looked for: it may have room again once something is saved.
    """
    if not _is_seen(file, mark):
        return _Access.NONE
    own = file.with_name(f"{file.name}-{rank}")
    try:
        own.touch()
        own.unlink()
    except OSError as error:
        return _Access.READ if error.errno in _REFUSED else _Access.WRITE
    return _Access.WRITE


def _check_shared(peers: Peers, briefing: Briefing, access: _Access) -> None:
    """Refuse, on all ranks alike, a directory that one of them does not see, or only reads."""
    found = peers.gather(torch.tensor([int(access)]), [1] * peers.world, kind="words").tolist()
    blind, readers = (
        ", ".join(str(rank) for rank, each in enumerate(found) if each == wanted)
        for wanted in (_Access.NONE, _Access.READ)
    )
    if blind:
        raise NotShared(
            f"rank {blind} does not see {briefing.path}, where rank 0 writes; give all "
            "ranks one directory that their hosts share: --out"
        )
    if readers:
        raise NotShared(
            f"rank {readers} sees {briefing.path} and may not write there, where each rank writes "
            "its part of a checkpoint; mount it to be written on all hosts, for one user"
        )


def _digest(checkpoint: Path) -> str:
    return hashlib.sha256((checkpoint / _MANIFEST).read_bytes()).hexdigest()
