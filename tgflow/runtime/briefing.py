"""Briefing that rank 0 sends the other ranks before they learn together: the run and its state.

Rank 0 alone reads the command's directory and stream; the others see the same files.
"""

from __future__ import annotations

import errno
import hashlib
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, Self

import torch

from tgflow.checkpoint import Checkpoint, CheckpointDamaged, load
from tgflow.choices import Direction
from tgflow.config import Config, flat, replaced
from tgflow.distributed.feed import Cause, LeaderFailed
from tgflow.distributed.parcel import broadcast_json
from tgflow.peers import PeerLost, Peers
from tgflow.runtime.directory import RunDirectory, SettingChange
from tgflow.runtime.files import RunFiles

RANKS = "ranks"
"""Folder of the files of ranks other than 0 in a run's directory."""
SEEN_WITHIN = 10.0
"""Seconds in which a file of rank 0 must be seen by all."""
_REFUSED = {errno.EROFS, errno.EACCES, errno.EPERM}


class NotShared(FileNotFoundError):
    """A rank does not see the run's directory, or may not write there."""


@dataclass(frozen=True, slots=True)
class Briefing:
    """A run: its directory, settings by key, checkpoint with its digest, and shape of events.

    `mark` is the content of a file that all ranks must see.
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
    def of(cls, directory: RunDirectory, checkpoint: Path | None, **shape: Any) -> Self:
        """Return the briefing of rank 0; `shape` is `unit`, `x_dim`, `node_x_dim`, `direction`."""
        return cls(
            path=str(directory.path.resolve()),
            settings=flat(directory.config),
            changed=[astuple(change) for change in directory.changed],
            resumed=directory.resumed,
            checkpoint=None if checkpoint is None else checkpoint.name,
            digest=None if checkpoint is None else _digest(checkpoint),
            mark=secrets.token_hex(16),
            **shape,
        )

    @property
    def config(self) -> Config:
        return replaced(Config(), self.settings)

    def directory(self) -> RunDirectory:
        """Return the run's directory, which rank 0 has taken."""
        changed = [SettingChange(*change) for change in self.changed]
        files = RunFiles(Path(self.path), resumed=True)
        return RunDirectory(files, self.config, changed, resumed=self.resumed)

    def load_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint to resume from, as this rank sees it; None without one."""
        if self.checkpoint is None:
            return None
        path = Path(self.path) / "checkpoints" / self.checkpoint
        most = self.config.checkpoint.most_bytes
        checkpoint = load(path, max_bytes=most, check_all=False)
        if _digest(path) != self.digest:
            raise CheckpointDamaged(f"{path} is another one than rank 0 sees")
        return checkpoint

    @property
    def mark_file(self) -> Path:
        return Path(self.path) / RANKS / ".shared"


class Lead:
    """Context of rank 0 until the other ranks know the run; an error in it is sent to them."""

    def __init__(self, peers: Peers | None = None) -> None:
        self.peers: Peers = Peers() if peers is None else peers
        self._is_over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not self._is_over and self.peers.failure is None:
            with suppress(PeerLost):  # `error` is what ends this rank
                broadcast_json(self.peers, {"failure": asdict(Cause.of(error))})

    def brief(self, briefing: Briefing) -> None:
        if self.peers.world == 1:
            return
        briefing.mark_file.parent.mkdir(exist_ok=True)
        briefing.mark_file.write_text(briefing.mark)
        self.send_words(asdict(briefing))
        _check_shared(self.peers, briefing, True)

    def send_words(self, words: Any) -> None:
        self._is_over = True
        broadcast_json(self.peers, {"words": words})


def hear(peers: Peers) -> Briefing:
    """Return what rank 0 sends by `Lead.brief`, on any other rank; waits for it."""
    briefing = Briefing(**hear_words(peers))
    _check_shared(peers, briefing, _is_shared(briefing.mark_file, briefing.mark, peers.rank))
    return briefing


def hear_words(peers: Peers) -> Any:
    """Return what rank 0 sends by `Lead.send_words`, on any other rank; waits for it."""
    received = broadcast_json(peers)
    if "failure" in received:
        raise LeaderFailed(Cause(**received["failure"]))
    return received["words"]


def _is_shared(file: Path, mark: str, rank: int) -> bool:
    """Return whether this rank sees a file with this content, and may write beside it.

    A file system may take a while to show it. A full disk is no refusal: it may have room later.
    """
    deadline = time.monotonic() + SEEN_WITHIN
    while True:
        with suppress(OSError):
            if file.read_text() == mark:
                break
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    own = file.with_name(f"{file.name}-{rank}")
    try:
        own.touch()
        own.unlink()
    except OSError as error:
        return error.errno not in _REFUSED
    return True


def _check_shared(peers: Peers, briefing: Briefing, is_shared: bool) -> None:
    """Refuse, on all ranks alike, a directory that one of them does not see, or only reads."""
    found = peers.gather(torch.tensor([int(is_shared)]), [1] * peers.world, kind="words").tolist()
    blind = ", ".join(str(rank) for rank, each in enumerate(found) if not each)
    if blind:
        raise NotShared(
            f"rank {blind} does not see {briefing.path}, where rank 0 writes, or may not write "
            "there; give all ranks one directory that their hosts share and may write to: --out"
        )


def _digest(checkpoint: Path) -> str:
    return hashlib.sha256((checkpoint / "manifest.json").read_bytes()).hexdigest()
