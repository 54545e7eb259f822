"""What ranks other than 0 write of a run's checkpoints: rank 0 says when, and commits them."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from tgflow.checkpoint import CheckpointWriter
from tgflow.checkpoint.notices import Notices
from tgflow.checkpoint.rank_checkpoint import RankCheckpoint
from tgflow.checkpoint.sharded import FollowingStore
from tgflow.distributed.words import share_words
from tgflow.peers import PeerLost, Peers
from tgflow.train.stream_trainer import StreamTrainer

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
        checkpoint = RankCheckpoint({}, shard=self._peers.shard)
        self._trainer.save(checkpoint)
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
        if self._trainer.is_spread and share_words(self._peers):
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
