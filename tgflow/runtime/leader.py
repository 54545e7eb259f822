"""What the run of rank 0 has beside the parts of any run: others follow its stream and its word."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from tgflow.checkpoint import CheckpointStore, CheckpointWriter
from tgflow.checkpoint.sharded import LeadingStore
from tgflow.distributed.board import Board
from tgflow.distributed.feed import Feed, heartbeat_of
from tgflow.events import EventBatch
from tgflow.peers import Peers
from tgflow.runtime.followed_saves import notices_of
from tgflow.runtime.log import RunLog
from tgflow.runtime.memory import Judge, MemoryGuard
from tgflow.runtime.metrics import MetricSource
from tgflow.runtime.orders import Orders
from tgflow.runtime.rank_watch import RankGuard, RankMetrics
from tgflow.runtime.runner import Observer, Report
from tgflow.runtime.stream import FlowControl
from tgflow.train.stream_trainer import StreamTrainer


@dataclass(frozen=True, slots=True)
class LeaderParts:
    """Parts of a runner that depend on whether there are other ranks; the defaults are of one."""

    stream: Iterable[EventBatch]
    orders: Orders = field(default_factory=Orders)
    services: Sequence[AbstractContextManager[object]] = ()
    sources: Sequence[MetricSource] = ()
    observers: Sequence[Observer] = ()
    reports: Mapping[str, Report] = field(default_factory=dict)
    judge: Callable[[MemoryGuard], Judge] = lambda guard: guard


def lead(
    peers: Peers,
    stream: Iterable[EventBatch],
    trainer: StreamTrainer,
    flow: FlowControl,
    run_log: RunLog,
    timeout: float,
) -> LeaderParts:
    """Return the parts by which rank 0 leads, or those of a run that is alone.

    Args:
        peers: The ranks; this is rank 0 of them.
        stream: What it reads.
        trainer: What learns.
        flow: Stops the stream.
        run_log: Hears of a rank that is slow.
        timeout: Seconds of silence after which a rank is lost.
    """
    if peers.world == 1:
        return LeaderParts(stream)
    assert trainer.control is not None
    metrics = RankMetrics(trainer.control, run_log)
    heartbeat = heartbeat_of(timeout)
    size = trainer.config.batch_size
    feed = Feed(peers, stream, size, lost=flow.stop, heartbeat=heartbeat)
    board = Board.of(peers)
    return LeaderParts(
        feed,
        Orders(trainer.control),
        services=[feed],
        sources=[metrics],
        observers=[metrics.after_step],
        reports={"ranks": metrics.describe},
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
