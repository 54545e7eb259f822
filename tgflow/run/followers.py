"""Distributed runs: rank 0 reads the stream and commits checkpoints, the others follow.

Only rank 0 reads the command's directory and stream; it sends settings to the others, which see the
same files. A follower trains on the events that rank 0 sends. It has no source, ids, dead
letters, records, display or report, and writes its own shard of each checkpoint.
"""

from __future__ import annotations

import errno
import secrets
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import astuple
from pathlib import Path

import torch

from tgflow.base.peers import PeerLost, Peers
from tgflow.checkpoint import Checkpoint, CheckpointStore, CheckpointWriter, load
from tgflow.graph.events import EventBatch
from tgflow.ranks.broadcast import FeedClosed, Followed, LeaderFailed, receive_config
from tgflow.ranks.control import Order, RankControl
from tgflow.ranks.parcel import broadcast_json
from tgflow.ranks.saves import FollowingStore, LeadingStore
from tgflow.run.config import Config, flat, replaced
from tgflow.run.context import RunContext
from tgflow.run.directory import RunDirectory, SettingChange
from tgflow.run.records import RunFiles, keep_private
from tgflow.run.stream import FlowControl, MemoryGuard, Stopped, rank_at_limit
from tgflow.train.stream_trainer import StreamTrainer

SHAPE = ("unit", "x_dim", "node_x_dim", "direction")
RANKS = "ranks"
SEEN_WITHIN = 10.0
"""Seconds within which a file of rank 0 must be visible to all."""
_REFUSED = {errno.EROFS, errno.EACCES, errno.EPERM}


def send_run(run: RunContext) -> None:
    """Send directory, settings, checkpoint and shape of events to the followers, if any."""
    if run.peers.world == 1:
        return
    file, mark = _mark_file(run.path), secrets.token_hex(16)
    file.parent.mkdir(exist_ok=True)
    file.write_text(mark)
    run.lead.send_config(
        {
            "path": str(run.path.resolve()),
            "settings": flat(run.config),
            "changed": [astuple(change) for change in run.directory.changed],
            "resumed": run.directory.resumed,
            "checkpoint": None if run.newest is None else run.store.entries()[-1].path.name,
            "mark": mark,
            "shape": {name: getattr(run, name) for name in SHAPE},
        }
    )
    _check_shared(run.peers, run.path, True)


def receive_run(peers: Peers) -> RunContext:
    """Receive what `send_run` sends, on any rank but 0; blocks."""
    sent = receive_config(peers)
    path = Path(sent["path"])
    _check_shared(peers, path, _is_shared(_mark_file(path), sent["mark"], peers.rank))
    config, changed = replaced(Config(), sent["settings"]), sent["changed"]
    keep_private(config.run)
    directory = RunDirectory(  # which rank 0 has locked
        RunFiles(path, resumed=True),
        config,
        [SettingChange(*change) for change in changed],
        resumed=sent["resumed"],
    )
    run = RunContext(directory=directory, peers=peers, **sent["shape"])
    if (name := sent["checkpoint"]) is not None:  # as this rank sees it
        most = config.checkpoint.most_bytes
        run.newest = load(path / "checkpoints" / name, max_bytes=most, check_all=False)
    return run


def _mark_file(path: Path) -> Path:
    return path / RANKS / ".shared"


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


def _check_shared(peers: Peers, path: Path, is_shared: bool) -> None:
    """Raise on all ranks if one of them does not see the directory, or cannot write there."""
    found = peers.gather(torch.tensor([int(is_shared)]), [1] * peers.world, kind="words").tolist()
    blind = ", ".join(str(rank) for rank, each in enumerate(found) if not each)
    if blind:
        raise FileNotFoundError(
            f"rank {blind} does not see {path}, where rank 0 writes, or cannot write "
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
        requester = self._control.requester
        if who := requester(Order.STOP_FOR_MEMORY):
            raise rank_at_limit(who)
        if who := requester(Order.STOP):
            self._flow.stop_for(f"a signal to {who}")
        return super().is_short(rss) or requester(Order.HOLD) is not None


def make_writer(peers: Peers, store: CheckpointStore) -> CheckpointWriter:
    return CheckpointWriter(store if peers.world == 1 else LeadingStore(store, peers))


class FollowedSaves(AbstractContextManager["FollowedSaves"]):
    """Writes this rank's shard of each checkpoint; a context manager that waits for the last."""

    saved = None

    def __init__(self, peers: Peers, trainer: StreamTrainer, directory: Path) -> None:
        self._peers, self._trainer = peers, trainer
        self._writer = CheckpointWriter(FollowingStore(directory, peers))

    def __exit__(self, *error: object) -> None:
        with suppress(OSError, PeerLost):  # rank 0 reports it, or a worse error ends the run
            self._writer.wait()

    def after_step(self) -> bool:
        return False

    def take(self) -> None:
        """Copy this rank's shard and start the write; waits for the previous one."""
        later = self._trainer.device.type == "cpu"
        checkpoint = Checkpoint({}, shard=self._peers.shard, copies_later=later)
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
