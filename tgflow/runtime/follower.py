"""The run of any rank but 0: the same trainer over what rank 0 reads, and nothing else.

It has no source, ids, dead letters, records, display or report; of a checkpoint it writes its
share.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

from tgflow.cuda.device import Device
from tgflow.distributed.board import Board
from tgflow.distributed.feed import FeedClosed, Followed, LeaderFailed
from tgflow.events import EventBatch
from tgflow.model import TemporalModel
from tgflow.peers import Peers
from tgflow.runtime.briefing import Briefing
from tgflow.runtime.followed_saves import FollowedSaves
from tgflow.runtime.log import RunLog, library_messages
from tgflow.runtime.orders import Orders
from tgflow.runtime.rank_watch import RankWatch
from tgflow.runtime.restore import make_trainer
from tgflow.runtime.runner import Runner
from tgflow.runtime.stream import FlowControl, Stopped
from tgflow.runtime.watch import memory_guard


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
        RankWatch(Board.of(peers), memory_guard(directory.config), flow, run_log),
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
