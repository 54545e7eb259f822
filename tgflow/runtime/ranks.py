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
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from tgflow.checkpoint import (
    Checkpoint,
    CheckpointStore,
    CheckpointWriter,
    load,
)
from tgflow.checkpoint.ranks import FollowingStore, LeadingStore, Notices
from tgflow.choices import Direction
from tgflow.config import Config, flat, replaced
from tgflow.distributed.control import Order
from tgflow.distributed.feed import Cause, FeedClosed, Followed, LeaderFailed
from tgflow.distributed.parcel import broadcast_json
from tgflow.events import EventBatch
from tgflow.peers import PeerLost, Peers
from tgflow.runtime import watch
from tgflow.runtime.directory import RunDirectory, SettingChange
from tgflow.runtime.files import RunFiles
from tgflow.runtime.log import RunLog
from tgflow.runtime.machine import anonymous_bytes
from tgflow.runtime.stream import FlowControl, MemoryGuard, MemoryLimit, Stopped
from tgflow.train.stream_trainer import StreamTrainer

if TYPE_CHECKING:
    from tgflow.distributed.ranks import Ranks

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
                broadcast_json(self.peers, {"failure": Cause.of(error)._asdict()})

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
        raise LeaderFailed(Cause(**received["failure"]))
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


_PAUSE = 0.01


def joined(peers: Peers) -> Ranks:
    """Return joined ranks, which share a store."""
    from tgflow.distributed.ranks import Ranks

    assert isinstance(peers, Ranks)
    return peers


class Board:
    """Requests of all ranks to rank 0, through the shared store. Thread-safe.

    Other figures are sent with the payload of micro-batches. Signals and memory limits must also
    reach rank 0 while no events arrive. Its methods raise RuntimeError if the store is gone.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._store, self._rank, self._world = ranks.store, ranks.rank, ranks.world

    def ask(self, order: Order) -> None:
        self._store.set(f"asks/{self._rank}", str(int(order)))

    def read(self) -> dict[int, Order]:
        keys = {rank: f"asks/{rank}" for rank in range(self._world)}
        return {
            rank: Order(int(self._store.get(key)))
            for rank, key in keys.items()
            if self._store.check([key])
        }


def asking(
    board: Board, guard: MemoryGuard, flow: FlowControl, run_log: RunLog
) -> AbstractContextManager[None]:
    """Return a context in which a rank other than 0 can request a pause, or a stop of all ranks."""
    asked, is_over = Order.NONE, False

    def ask() -> None:
        nonlocal asked, is_over
        asks = Order.STOP if flow.stopped else Order.NONE
        try:
            if not is_over and guard.is_short(anonymous_bytes()):
                asks |= Order.HOLD
        except MemoryLimit as error:
            is_over = True
            run_log.error("memory", str(error))
        if is_over:
            asks |= Order.STOP_FOR_MEMORY
        if asks != asked:
            with suppress(RuntimeError):  # rank 0 is gone, which the training detects
                board.ask(asks)
            asked = asks

    return watch.repeating(ask)


class RankGuard(MemoryGuard):
    """Memory guard of rank 0, which also pauses and stops the stream on requests of other ranks."""

    def __init__(self, limit: int | None, grace: float, board: Board, flow: FlowControl) -> None:
        super().__init__(limit, grace)
        self._board, self._flow = board, flow

    def is_short(self, rss: int) -> bool:
        """Return whether the stream must pause; raises MemoryLimit if any rank is at its limit."""
        asked: dict[int, Order] = {}
        with suppress(RuntimeError):  # this rank is leaving the group
            asked = self._board.read()
        for rank, asks in asked.items():
            if Order.STOP_FOR_MEMORY in asks:
                raise MemoryLimit(f"rank {rank} is at its memory_limit; see its log")
            if Order.STOP in asks:
                self._flow.stop_for(f"a signal to rank {rank}")
        return super().is_short(rss) or any(Order.HOLD in asks for asks in asked.values())


def _notices(peers: Peers) -> Notices:
    return Notices(joined(peers).store, peers, "checkpoint/")


def make_writer(peers: Peers, store: CheckpointStore, timeout: float) -> CheckpointWriter:
    """Return the writer of rank 0, which waits `timeout` seconds for shards of other ranks."""
    if peers.world == 1:
        return CheckpointWriter(store)
    return CheckpointWriter(LeadingStore(store, _notices(peers), timeout))


class FollowedSaves:
    """Writes this rank's shard of each checkpoint; a context manager that waits for the last."""

    saved = None

    def __init__(
        self, peers: Peers, trainer: StreamTrainer, directory: Path, timeout: float
    ) -> None:
        self._peers, self._trainer, self._timeout = peers, trainer, timeout
        self._writer = CheckpointWriter(FollowingStore(directory, _notices(peers)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError, PeerLost):  # rank 0 reports it, or a worse error ends the run
            self._wait()

    def after_step(self) -> bool:
        return False

    def take(self) -> None:
        """Copy this rank's shard and start the write; waits for the previous one."""
        checkpoint = Checkpoint({}, shard=self._peers.shard)
        self._trainer.save_to(checkpoint)
        self._wait()
        if checkpoint.elsewhere:  # otherwise rank 0 writes everything
            self._writer.submit(self._trainer.position, checkpoint)

    def finish(self) -> None:
        """Wait for the save in progress; rank 0 saves the steps after it.

        If rank 0 lacks part of the state, this rank saves its shard, if rank 0 broadcasts that
        there is anything to save. Once the shard is written, rank 0 may be gone.
        """
        with suppress(OSError, PeerLost):
            self._wait()
        if self._trainer.is_spread and broadcast_json(self._peers):
            with suppress(OSError, PeerLost):
                self.take()
                self._wait()

    def _wait(self) -> None:
        """Wait until no save is in progress; the store of a hanging rank 0 does not answer."""
        deadline = time.monotonic() + self._timeout
        while self._writer.busy:
            if self._peers.failure is not None:
                raise PeerLost(str(self._peers.failure))
            if time.monotonic() > deadline:
                raise PeerLost(f"no response of rank 0 about a checkpoint for {self._timeout:g} s")
            time.sleep(_PAUSE)
        self._writer.wait()


class FollowedStream:
    """The stream of a follower, which stops with that of rank 0."""

    def __init__(self, followed: Followed) -> None:
        self.unit = followed.unit
        self._followed = followed

    def __iter__(self) -> Iterator[EventBatch]:
        """Yield the batches of rank 0; raises Stopped after a stop request."""
        try:
            yield from self._followed
        except FeedClosed:
            raise Stopped from None
        except LeaderFailed as failure:
            if Stopped.__name__ in failure.kinds:
                raise Stopped from None
            raise
