"""Leader and followers: what the runs of rank 0 and of the other ranks add to a run.

A follower trains on the events that rank 0 sends. It has no source, ids, dead letters, records,
display or report, and writes its own shard of each checkpoint.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from tgflow.checkpoint import Checkpoint, CheckpointStore, CheckpointWriter
from tgflow.checkpoint.ranks import FollowingStore, LeadingStore, Notices
from tgflow.cuda.device import Device
from tgflow.distributed.control import Order, RankFigures
from tgflow.distributed.feed import Feed, FeedClosed, Followed, LeaderFailed, heartbeat_of
from tgflow.distributed.parcel import broadcast_json
from tgflow.events import EventBatch
from tgflow.model import TemporalModel
from tgflow.peers import PeerLost, Peers
from tgflow.runtime.briefing import Briefing
from tgflow.runtime.checkpoints import Component
from tgflow.runtime.log import RunLog, library_messages
from tgflow.runtime.machine import rss_bytes
from tgflow.runtime.metrics import MetricSource
from tgflow.runtime.restore import make_trainer
from tgflow.runtime.runner import Orders, Runner
from tgflow.runtime.stream import FlowControl, Judge, MemoryGuard, MemoryLimit, Stopped
from tgflow.runtime.watch import memory_guard
from tgflow.train.rank_control import RankControl
from tgflow.train.stream_trainer import StreamTrainer

if TYPE_CHECKING:
    from tgflow.distributed.ranks import Ranks

KINDS = {"gradient": "gradient", "rows": "rows", "queries": "query", "other": "other"}
"""What is sent, and what `RankFigures` calls it."""
_TICK = 0.25
_GRACE = 1.0


class Board:
    """Requests of all ranks to rank 0, in the store that all ranks share. Thread-safe.

    Other figures travel with the parcels of micro-batches. A signal and a memory limit must also
    reach rank 0 while no events arrive.

    Args:
        ranks: The ranks that have joined.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._store, self._rank, self._world = ranks.store, ranks.rank, ranks.world

    @classmethod
    def of(cls, peers: Peers) -> Self:
        """Return the board of ranks that have joined."""
        from tgflow.distributed.ranks import Ranks

        assert isinstance(peers, Ranks)
        return cls(peers)

    def ask(self, order: Order) -> None:
        """Replace the request of this rank. Raises RuntimeError if the store is gone."""
        self._store.set(_key(self._rank), str(int(order)))

    def read(self) -> dict[int, Order]:
        """Return the requests by rank. Raises RuntimeError if the store is gone."""
        asking = [rank for rank in range(self._world) if self._store.check([_key(rank)])]
        return {rank: Order(int(self._store.get(_key(rank)))) for rank in asking}


def _key(rank: int) -> str:
    return f"asks/{rank}"


class RankWatch:
    """A thread of any rank but 0 that watches it, and asks rank 0 to hold, or to end all.

    A context manager.

    Args:
        board: Where rank 0 reads what is asked.
        guard: Judges the memory of this rank.
        flow: Stopped where somebody wants this rank to end; the ranks end together.
        run_log: Hears why it asks for something.
    """

    def __init__(
        self, board: Board, guard: MemoryGuard, flow: FlowControl, run_log: RunLog
    ) -> None:
        self._board, self._guard, self._flow, self._run_log = board, guard, flow, run_log
        self._is_short = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tgflow-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join(_GRACE)

    def _run(self) -> None:
        asked = Order.NONE
        with suppress(RuntimeError):  # rank 0 is gone, as whoever waits for it learns
            while not self._end.wait(_TICK):
                asks = self._asks()
                if asks != asked:
                    self._board.ask(asks)
                    asked = asks

    def _asks(self) -> Order:
        """Return what this rank would have rank 0 order."""
        asks = Order.STOP if self._flow.stopped else Order.NONE
        if self._is_short:
            return asks | Order.STOP_FOR_MEMORY
        try:
            verdict = self._guard.judge(rss_bytes())
        except MemoryLimit as error:
            self._is_short = True
            self._run_log.error("memory", str(error))
            return asks | Order.STOP_FOR_MEMORY
        return asks | Order.HOLD if verdict == "pause" else asks


class RankGuard:
    """Judges the memory of all ranks for rank 0, which holds its stream; and ends it as they ask.

    Args:
        guard: Judges this rank's memory.
        board: What the others ask for.
        flow: Stopped if another rank got a signal.
    """

    def __init__(self, guard: MemoryGuard, board: Board, flow: FlowControl) -> None:
        self._guard, self._board, self._flow = guard, board, flow

    def judge(self, rss: int) -> Literal["pause", "resume", "none"]:
        """Return what to do with the stream; see `MemoryGuard.judge`.

        Raises:
            MemoryLimit: If any rank has held too much for too long.
        """
        asked = self._read()
        for rank, asks in asked.items():
            if Order.STOP_FOR_MEMORY in asks:
                raise MemoryLimit(f"rank {rank} is at its memory_limit; its own log says more")
            if Order.STOP in asks:
                self._flow.stop_for(f"a signal to rank {rank}")
        own = self._guard.judge(rss)
        if any(Order.HOLD in asks for asks in asked.values()):
            return "pause"
        return "resume" if own == "none" else own

    def _read(self) -> Mapping[int, Order]:
        try:
            return self._board.read()
        except RuntimeError:  # this rank closes the world
            return {}


class RankMetrics(Component):
    """Figures of all ranks for health, metrics and report, on rank 0.

    Args:
        control: Receives the figures of all ranks with each micro-batch.
    """

    def __init__(self, control: RankControl) -> None:
        self._control = control

    def by_rank(self) -> dict[int, RankFigures]:
        """Return the figures of each rank, as of the latest micro-batch; empty before the first."""
        return dict(enumerate(self._control.figures))

    def health(self) -> Mapping[str, Any]:
        """Return `ranks`: the figures of each, by its number."""
        return {"ranks": self.describe()}

    def report(self) -> Mapping[str, Mapping[str, Any]]:
        """Return `ranks`, as `health` does."""
        return {"ranks": self.describe()}

    def describe(self) -> dict[str, Any]:
        """Return the figures of each rank as plain values, by its number."""
        return {str(rank): _plain(figures) for rank, figures in self.by_rank().items()}

    def metrics(self) -> Mapping[str, Any]:
        """Return values by rank."""
        everyone = self.by_rank()
        out: dict[str, Any] = {
            f"rank.{name}": {str(rank): getattr(each, name) for rank, each in everyone.items()}
            for name in ("compute_seconds", "wait_seconds", "memory_bytes")
        }
        sent = {rank: sent_bytes(each) for rank, each in everyone.items()}
        out["rank.sent_bytes"] = {str(rank): sum(by.values()) for rank, by in sent.items()}
        out["sent_bytes"] = {kind: sum(by[kind] for by in sent.values()) for kind in KINDS}
        return out


def sent_bytes(figures: RankFigures) -> dict[str, int]:
    """Return what a rank has sent, by kind."""
    return {kind: getattr(figures, f"{name}_bytes") for kind, name in KINDS.items()}


def _plain(figures: RankFigures) -> dict[str, Any]:
    return {
        "compute_seconds": figures.compute_seconds,
        "wait_seconds": figures.wait_seconds,
        "memory_bytes": figures.memory_bytes,
        "sent_bytes": sent_bytes(figures),
    }


_PREFIX = "checkpoint/"
_PAUSE = 0.01


def notices_of(peers: Peers) -> Notices:
    """Return what ranks post of a run's checkpoints.

    Args:
        peers: The ranks, more than one.
    """
    from tgflow.distributed.ranks import Ranks

    assert isinstance(peers, Ranks)
    return Notices(peers.store, peers, _PREFIX)


class FollowedSaves:
    """Writes this rank's share of each checkpoint; a context manager that waits for the last.

    Args:
        peers: The ranks; this is none but rank 0.
        trainer: What is saved.
        directory: The checkpoints of the run, which rank 0 commits.
        timeout: Seconds after which a rank 0 that does not say what became of one is lost. It
            orders none before the one before is done.
    """

    saved = None

    def __init__(
        self, peers: Peers, trainer: StreamTrainer, directory: Path, timeout: float
    ) -> None:
        self._peers, self._trainer, self._timeout = peers, trainer, timeout
        self._writer = CheckpointWriter(FollowingStore(directory, notices_of(peers)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError, PeerLost):  # rank 0 says so, or something worse ends the run
            self._wait()

    def after_step(self) -> bool:
        """Return False: rank 0 says when."""
        return False

    def take(self) -> None:
        """Copy what is this rank's to write, and begin to write it; waits for the one before.

        Raises:
            OSError: If the disk of any rank refused three in a row.
            PeerLost: If a rank is gone.
        """
        checkpoint = Checkpoint({}, shard=self._peers.shard)
        self._trainer.save_to(checkpoint)
        self._wait()
        if checkpoint.elsewhere:  # else rank 0 writes all of it
            self._writer.submit(self._trainer.position, checkpoint)

    def finish(self) -> None:
        """Wait for the one that is under way; what was learned after it rank 0 saves.

        Where it has not all of it, this rank saves its share, if rank 0 says that there is anything
        to save. Once the share is written, rank 0 may be gone before it says how that went.
        """
        with suppress(OSError, PeerLost):
            self._wait()
        if self._trainer.is_spread and broadcast_json(self._peers):
            with suppress(OSError, PeerLost):
                self.take()
                self._wait()

    def _wait(self) -> None:
        """Return once nothing is under way: a rank 0 that hangs answers nobody who asks its store.

        Raises:
            OSError: If the disk of any rank refused three in a row.
            PeerLost: If a rank is gone, or rank 0 is silent for too long.
        """
        deadline = time.monotonic() + self._timeout
        while self._writer.busy:
            if self._peers.failure is not None:
                raise PeerLost(str(self._peers.failure))
            if time.monotonic() > deadline:
                raise PeerLost(f"rank 0 was silent about a checkpoint for {self._timeout:g} s")
            time.sleep(_PAUSE)
        self._writer.wait()


@dataclass(frozen=True, slots=True)
class LeaderParts:
    """Parts of a runner that depend on whether there are other ranks; the defaults are of one."""

    stream: Iterable[EventBatch]
    orders: Orders = field(default_factory=Orders)
    services: Sequence[AbstractContextManager[object]] = ()
    sources: Sequence[MetricSource] = ()
    components: Sequence[Component] = ()
    judge: Callable[[MemoryGuard], Judge] = lambda guard: guard


def lead(
    peers: Peers,
    stream: Iterable[EventBatch],
    trainer: StreamTrainer,
    flow: FlowControl,
    timeout: float,
) -> LeaderParts:
    """Return the parts by which rank 0 leads, or those of a run that is alone.

    Args:
        peers: The ranks; this is rank 0 of them.
        stream: What it reads.
        trainer: What learns.
        flow: Stops the stream.
        timeout: Seconds of silence after which a rank is lost.
    """
    if peers.world == 1:
        return LeaderParts(stream)
    assert trainer.control is not None
    metrics = RankMetrics(trainer.control)
    heartbeat = heartbeat_of(timeout)
    size = trainer.config.batch_size
    feed = Feed(peers, stream, size, lost=flow.stop, heartbeat=heartbeat)
    board = Board.of(peers)
    return LeaderParts(
        feed,
        Orders(trainer.control),
        services=[feed],
        sources=[metrics],
        components=[metrics],
        judge=lambda guard: RankGuard(guard, board, flow),
    )


def make_writer(peers: Peers, store: CheckpointStore, timeout: float) -> CheckpointWriter:
    """Return what writes the checkpoints of a run, with the other ranks if there are any.

    Args:
        peers: The ranks; this is rank 0 of them.
        store: The run's checkpoints.
        timeout: Seconds to wait for what others write of one.
    """
    if peers.world == 1:
        return CheckpointWriter(store)
    return CheckpointWriter(LeadingStore(store, notices_of(peers), timeout))


class FollowedStream:
    """The stream of a follower, which stops where that of rank 0 does.

    Args:
        followed: What rank 0 sends.
    """

    def __init__(self, followed: Followed) -> None:
        self.unit = followed.unit
        self._followed = followed

    def __iter__(self) -> Iterator[EventBatch]:
        """Yield what rank 0 sends.

        Raises:
            Stopped: If rank 0 was asked to stop.
            LeaderFailed: If it failed.
        """
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
    """Return the runner of this rank, which learns what rank 0 does.

    Args:
        briefing: What rank 0 has sent.
        peers: The ranks.
        model: On its device.
        flow: Stopped where somebody wants this rank to end: rank 0 then ends all.
        run_log: Gets what was found.
        gpu: With the graph; None where that is on the host.

    Raises:
        CheckpointError: If this rank does not see the checkpoint that rank 0 resumes from.
        PeerLost: If another rank is gone.
    """
    directory = briefing.directory()
    checkpoint = briefing.load_checkpoint()
    followed = Followed(peers, briefing.unit, briefing.x_dim)
    trainer = make_trainer(
        followed,
        briefing.direction,
        model,
        directory,
        checkpoint,
        run_log,
        gpu,
        peers,
        node_x_dim=briefing.node_x_dim,
    )
    timeout = directory.config.ranks.timeout
    checkpoints = FollowedSaves(peers, trainer, directory.path / "checkpoints", timeout)
    services: list[AbstractContextManager[object]] = [
        library_messages(run_log),
        checkpoints,
        followed,
        RankWatch(Board.of(peers), memory_guard(directory.config.operate), flow, run_log),
    ]

    run_log.info("start", f"rank {peers.rank} follows at event {trainer.position:,}")
    return Runner(
        trainer,
        FollowedStream(followed),
        checkpoints,
        resumed=directory.resumed,
        orders=Orders(trainer.control),
        services=services,
        warn=lambda text: run_log.warning("checkpoint", text),
    )
