"""Distributed runs: rank 0 reads the stream and commits checkpoints, the others follow.

Only rank 0 reads the command's directory and stream; it sends a briefing to the others, which see
the same files. A follower trains on the events that rank 0 sends. It has no source, ids, dead
letters, records, display or report, and writes its own shard of each checkpoint.
"""

from __future__ import annotations

import errno
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, Self

import torch

from tgflow.base.choices import Direction
from tgflow.base.peers import PeerLost, Peers
from tgflow.checkpoint import (
    Checkpoint,
    CheckpointStore,
    CheckpointWriter,
    load,
)
from tgflow.graph.events import EventBatch
from tgflow.ranks.broadcast import FeedClosed, Followed, LeaderFailed
from tgflow.ranks.control import Order
from tgflow.ranks.parcel import broadcast_json
from tgflow.ranks.saves import FollowingStore, LeadingStore
from tgflow.run.config import Config, flat, replaced
from tgflow.run.directory import RunDirectory, SettingChange
from tgflow.run.records import RunFiles, keep_private
from tgflow.run.stream import FlowControl, MemoryGuard, Stopped, rank_at_limit
from tgflow.train.reducer import RankControl
from tgflow.train.stream_trainer import StreamTrainer

RANKS = "ranks"
"""Folder for files of ranks other than 0 in a run's directory."""
SEEN_WITHIN = 10.0
"""Seconds within which a file of rank 0 must be visible to all."""
_REFUSED = {errno.EROFS, errno.EACCES, errno.EPERM}


class NotShared(FileNotFoundError):
    """Raised when a rank does not see the run's directory, or may not write there."""


@dataclass(frozen=True, slots=True)
class Briefing:
    """Description of a run: directory, settings by key, checkpoint, and shape of events.

    `mark` is the content of a file that all ranks must see.
    """

    path: str
    settings: dict[str, Any]
    changed: Sequence[Sequence[Any]]
    resumed: bool
    checkpoint: str | None
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
            mark=secrets.token_hex(16),
            **shape,
        )

    @property
    def config(self) -> Config:
        return replaced(Config(), self.settings)

    def directory(self) -> RunDirectory:
        """Return the run's directory, which rank 0 has locked."""
        keep_private(self.config.run)
        changed = [SettingChange(*change) for change in self.changed]
        files = RunFiles(Path(self.path), resumed=True)
        return RunDirectory(files, self.config, changed, resumed=self.resumed)

    def load_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint to resume from, as this rank sees it; None without one."""
        if self.checkpoint is None:
            return None
        path = Path(self.path) / "checkpoints" / self.checkpoint
        most = self.config.checkpoint.most_bytes
        return load(path, max_bytes=most, check_all=False)

    @property
    def mark_file(self) -> Path:
        return Path(self.path) / RANKS / ".shared"


class Lead:
    """Context of rank 0 until the briefing is sent; an error in it is sent to the other ranks."""

    def __init__(self, peers: Peers | None = None) -> None:
        self.peers: Peers = Peers() if peers is None else peers
        self._is_over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not self._is_over and self.peers.failure is None:
            with suppress(PeerLost):  # `error` ends this rank already
                broadcast_json(self.peers, {"failure": LeaderFailed.of(error).to_json()})

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
    """Receive the briefing of `Lead.brief` on any rank but 0; blocks."""
    briefing = Briefing(**hear_words(peers))
    _check_shared(peers, briefing, _is_shared(briefing.mark_file, briefing.mark, peers.rank))
    return briefing


def hear_words(peers: Peers) -> Any:
    """Receive the value of `Lead.send_words` on any rank but 0; blocks."""
    received = broadcast_json(peers)
    if "failure" in received:
        raise LeaderFailed(*received["failure"])
    return received["words"]


def _is_shared(file: Path, mark: str, rank: int) -> bool:
    """Return whether this rank sees a file with this content, and may write beside it.

    A network file system may show it late. A full disk does not count: space may be freed later.
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
    """Raise on all ranks if one of them does not see the directory, or cannot write there."""
    found = peers.gather(torch.tensor([int(is_shared)]), [1] * peers.world, kind="words").tolist()
    blind = ", ".join(str(rank) for rank, each in enumerate(found) if not each)
    if blind:
        raise NotShared(
            f"rank {blind} does not see {briefing.path}, where rank 0 writes, or cannot write "
            "there; pass a directory that all hosts share and can write to: --out"
        )


class RankGuard(MemoryGuard):
    """Memory guard of rank 0, which also pauses and stops the stream on requests of other ranks."""

    def __init__(
        self, limit: int | None, grace: float, control: RankControl, flow: FlowControl
    ) -> None:
        super().__init__(limit, grace)
        self._control, self._flow = control, flow

    def is_short(self, rss: int) -> bool:
        """Return whether the stream must pause; raises MemoryLimit if any rank is at its limit."""
        who_asks = self._control.who_asks
        if who := who_asks(Order.STOP_FOR_MEMORY):
            raise rank_at_limit(who)
        if who := who_asks(Order.STOP):
            self._flow.stop_for(f"a signal to {who}")
        return super().is_short(rss) or who_asks(Order.HOLD) is not None


def make_writer(peers: Peers, store: CheckpointStore) -> CheckpointWriter:
    """Return the writer of rank 0."""
    return CheckpointWriter(store if peers.world == 1 else LeadingStore(store, peers))


class FollowedSaves:
    """Writes this rank's shard of each checkpoint; a context manager that waits for the last."""

    saved = None

    def __init__(self, peers: Peers, trainer: StreamTrainer, directory: Path) -> None:
        self._peers, self._trainer = peers, trainer
        self._writer = CheckpointWriter(FollowingStore(directory, peers))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError, PeerLost):  # rank 0 reports it, or a worse error ends the run
            self._writer.wait()

    def after_step(self) -> bool:
        return False

    def take(self) -> None:
        """Copy this rank's shard and start the write; waits for the previous one."""
        checkpoint = Checkpoint({}, shard=self._peers.shard)
        self._trainer.save_to(checkpoint)
        self._writer.wait()
        if checkpoint.elsewhere:  # otherwise rank 0 writes everything
            self._writer.submit(self._trainer.position, checkpoint)

    def finish(self) -> None:
        """Wait for the save in progress; rank 0 saves the steps after it.

        If rank 0 lacks part of the state, this rank saves its shard, if rank 0 broadcasts that
        there is anything to save. Once the shard is written, rank 0 may be gone.
        """
        with suppress(OSError, PeerLost):
            self._writer.wait()
        if self._trainer.is_spread and broadcast_json(self._peers):
            with suppress(OSError, PeerLost):
                self.take()
                self._writer.wait()


class FollowedStream(Followed):
    """The stream of a follower, which stops with that of rank 0."""

    def __iter__(self) -> Iterator[EventBatch]:
        """Yield the batches of rank 0; raises Stopped after a stop request."""
        try:
            yield from super().__iter__()
        except FeedClosed:
            raise Stopped from None
        except LeaderFailed as failure:
            if Stopped.__name__ in failure.kinds:
                raise Stopped from None
            raise
