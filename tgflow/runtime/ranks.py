"""Runs among ranks: rank 0 reads the stream and commits checkpoints, the others follow.

A follower trains on the events that rank 0 sends. It has no source, ids, dead letters, records,
display or report, and writes its own shard of each checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tgflow.checkpoint import Checkpoint, CheckpointStore, CheckpointWriter
from tgflow.checkpoint.ranks import FollowingStore, LeadingStore, Notices
from tgflow.cuda.device import Device
from tgflow.distributed.control import Order
from tgflow.distributed.feed import FeedClosed, Followed, LeaderFailed
from tgflow.distributed.parcel import broadcast_json
from tgflow.events import EventBatch
from tgflow.model import TemporalModel
from tgflow.peers import PeerLost, Peers
from tgflow.runtime import watch
from tgflow.runtime.briefing import Briefing
from tgflow.runtime.log import RunLog, library_messages
from tgflow.runtime.machine import rss_bytes
from tgflow.runtime.restore import make_trainer
from tgflow.runtime.runner import Runner
from tgflow.runtime.stream import FlowControl, MemoryGuard, MemoryLimit, Stopped
from tgflow.train.stream_trainer import StreamTrainer

if TYPE_CHECKING:
    from tgflow.distributed.ranks import Ranks

_PAUSE = 0.01


def joined(peers: Peers) -> Ranks:
    """Return ranks that have joined, which share a store."""
    from tgflow.distributed.ranks import Ranks

    assert isinstance(peers, Ranks)
    return peers


class Board:
    """Requests of all ranks to rank 0, in the store that all ranks share. Thread-safe.

    Other figures travel with the parcels of micro-batches. A signal and a memory limit must also
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
    """Return a context in which any rank but 0 asks it to pause, or to stop all ranks together."""
    asked, is_over = Order.NONE, False

    def ask() -> None:
        nonlocal asked, is_over
        asks = Order.STOP if flow.stopped else Order.NONE
        try:
            if not is_over and guard.is_short(rss_bytes()):
                asks |= Order.HOLD
        except MemoryLimit as error:
            is_over = True
            run_log.error("memory", str(error))
        if is_over:
            asks |= Order.STOP_FOR_MEMORY
        if asks != asked:
            with suppress(RuntimeError):  # rank 0 is gone, which the training notices
                board.ask(asks)
            asked = asks

    return watch.repeating(ask)


class RankGuard(MemoryGuard):
    """Memory guard of rank 0, which also pauses and stops the stream as other ranks ask."""

    def __init__(self, limit: int | None, grace: float, board: Board, flow: FlowControl) -> None:
        super().__init__(limit, grace)
        self._board, self._flow = board, flow

    def is_short(self, rss: int) -> bool:
        """Return whether the stream must pause; raises MemoryLimit if any rank is at its limit."""
        asked: dict[int, Order] = {}
        with suppress(RuntimeError):  # this rank leaves the others
            asked = self._board.read()
        for rank, asks in asked.items():
            if Order.STOP_FOR_MEMORY in asks:
                raise MemoryLimit(f"rank {rank} is at its memory_limit; its own log says more")
            if Order.STOP in asks:
                self._flow.stop_for(f"a signal to rank {rank}")
        return super().is_short(rss) or any(Order.HOLD in asks for asks in asked.values())


def _notices(peers: Peers) -> Notices:
    return Notices(joined(peers).store, peers, "checkpoint/")


def make_writer(peers: Peers, store: CheckpointStore, timeout: float) -> CheckpointWriter:
    """Return the writer of rank 0, which waits `timeout` seconds for shares of other ranks."""
    if peers.world == 1:
        return CheckpointWriter(store)
    return CheckpointWriter(LeadingStore(store, _notices(peers), timeout))


class FollowedSaves:
    """Writes this rank's share of each checkpoint; a context manager that waits for the last."""

    saved = None

    def __init__(
        self, peers: Peers, trainer: StreamTrainer, directory: Path, timeout: float
    ) -> None:
        self._peers, self._trainer, self._timeout = peers, trainer, timeout
        self._writer = CheckpointWriter(FollowingStore(directory, _notices(peers)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError, PeerLost):  # rank 0 reports it, or something worse ends the run
            self._wait()

    def after_step(self) -> bool:
        return False

    def take(self) -> None:
        """Copy this rank's share, and begin to write it; waits for the one before."""
        checkpoint = Checkpoint({}, shard=self._peers.shard)
        self._trainer.save_to(checkpoint)
        self._wait()
        if checkpoint.elsewhere:  # else rank 0 writes all of it
            self._writer.submit(self._trainer.position, checkpoint)

    def finish(self) -> None:
        """Wait for the one that is under way; rank 0 saves what was learned after it.

        Where rank 0 has not all of the state, this rank saves its share, if rank 0 broadcasts that
        there is anything to save. Once the share is written, rank 0 may be gone.
        """
        with suppress(OSError, PeerLost):
            self._wait()
        if self._trainer.is_spread and broadcast_json(self._peers):
            with suppress(OSError, PeerLost):
                self.take()
                self._wait()

    def _wait(self) -> None:
        """Return once nothing is under way; a hanging rank 0 does not answer for its store."""
        deadline = time.monotonic() + self._timeout
        while self._writer.busy:
            if self._peers.failure is not None:
                raise PeerLost(str(self._peers.failure))
            if time.monotonic() > deadline:
                raise PeerLost(f"rank 0 was silent about a checkpoint for {self._timeout:g} s")
            time.sleep(_PAUSE)
        self._writer.wait()


class FollowedStream:
    """The stream of a follower, which stops where that of rank 0 does."""

    def __init__(self, followed: Followed) -> None:
        self.unit = followed.unit
        self._followed = followed

    def __iter__(self) -> Iterator[EventBatch]:
        """Yield the batches of rank 0; raises Stopped if it was asked to stop."""
        try:
            yield from self._followed
        except FeedClosed:
            raise Stopped from None
        except LeaderFailed as failure:
            if Stopped.__name__ in failure.kinds:
                raise Stopped from None
            raise


def open_follower(
    briefing: Briefing,
    peers: Peers,
    model: TemporalModel,
    flow: FlowControl,
    run_log: RunLog,
    gpu: Device | None = None,
) -> Runner:
    """Return the runner of this rank, which learns what rank 0 does."""
    directory = briefing.directory()
    followed = Followed(peers, briefing.unit, briefing.x_dim)
    trainer = make_trainer(
        directory,
        model,
        followed,
        briefing.direction,
        briefing.node_x_dim,
        briefing.load_checkpoint(),
        gpu,
        peers,
        run_log,
    )
    config = directory.config
    guard = MemoryGuard(config.operate.memory_bytes, watch.GRACE_SECONDS)
    saves = FollowedSaves(peers, trainer, directory.path / "checkpoints", config.ranks.timeout)
    run_log.info("start", f"rank {peers.rank} follows at event {trainer.position:,}")
    return Runner(
        trainer,
        FollowedStream(followed),
        saves,
        resumed=directory.resumed,
        control=trainer.control,
        services=[
            library_messages(run_log),
            saves,
            followed,
            asking(Board(joined(peers)), guard, flow, run_log),
        ],
        warn=lambda text: run_log.warning("checkpoint", text),
    )
