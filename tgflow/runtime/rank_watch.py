"""How ranks are, told to rank 0 beside the training: their figures, and what they ask for."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, Self

from tgflow.distributed.board import Board, SlowRank
from tgflow.distributed.control import Order, RankFigures, decide
from tgflow.peers import Peers
from tgflow.runtime.log import RunLog
from tgflow.runtime.machine import rss_bytes
from tgflow.runtime.memory import MemoryGuard, MemoryLimit
from tgflow.runtime.stream import FlowControl
from tgflow.train.stream_trainer import StreamTrainer

COMPARED_EVERY = 100
"""Micro-batches over which the ranks' seconds are compared."""
KINDS = {"gradient": "gradient", "rows": "rows", "queries": "query", "other": "other"}
"""What is sent, and what `RankFigures` calls it."""
_TICK = 0.25
_POSTED_EVERY = 1.0


def figures_of(peers: Peers, trainer: StreamTrainer, asks: Order) -> RankFigures:
    """Return how this rank is."""
    return RankFigures.of(
        peers.traffic,
        compute_seconds=trainer.progress.compute_seconds,
        memory_bytes=rss_bytes(),
        asks=asks,
    )


class RankReporter:
    """A thread of any rank but 0 that watches it, and posts how it is; a context manager.

    Args:
        peers: The ranks.
        trainer: What learns on this one.
        board: Where rank 0 reads it.
        guard: Judges the memory of this rank.
        flow: Stopped where somebody wants this rank to end; the ranks end together.
        run_log: Hears why it asks for something.
    """

    def __init__(
        self,
        peers: Peers,
        trainer: StreamTrainer,
        board: Board,
        guard: MemoryGuard,
        flow: FlowControl,
        run_log: RunLog,
    ) -> None:
        self._peers, self._trainer, self._board = peers, trainer, board
        self._guard, self._flow, self._run_log = guard, flow, run_log
        self._is_short = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tgflow-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join(_POSTED_EVERY)

    def _run(self) -> None:
        with suppress(RuntimeError):  # rank 0 is gone, as whoever waits for it learns
            asked, posted_at = Order.NONE, 0.0
            while not self._end.wait(_TICK if posted_at else 0.0):
                asks = self._asks()
                if asks != asked or time.monotonic() - posted_at >= _POSTED_EVERY:
                    self._post(asks)
                    asked, posted_at = asks, time.monotonic()
            self._post(Order.NONE)

    def _post(self, asks: Order) -> None:
        self._board.post(figures_of(self._peers, self._trainer, asks))

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
        board: What the others say.
        flow: Stopped if another rank got a signal.
    """

    def __init__(self, guard: MemoryGuard, board: Board, flow: FlowControl) -> None:
        self._guard, self._board, self._flow = guard, board, flow

    def judge(self, rss: int) -> Literal["pause", "resume", "none"]:
        """Return what to do with the stream; see `MemoryGuard.judge`.

        Raises:
            MemoryLimit: If any rank has held too much for too long.
        """
        everyone = self._read()
        for rank, figures in everyone.items():
            if Order.STOP_FOR_MEMORY in figures.asks:
                raise MemoryLimit(f"rank {rank} is at its memory_limit; its own log says more")
            if Order.STOP in figures.asks:
                self._flow.stop_for(f"a signal to rank {rank}")
        own = self._guard.judge(rss)
        if Order.HOLD in decide(Order.NONE, everyone.values()):
            return "pause"
        return "resume" if own == "none" else own

    def _read(self) -> Mapping[int, RankFigures]:
        try:
            return self._board.read()
        except RuntimeError:  # this rank closes the world
            return {}


class RankMetrics:
    """What there is to say of all ranks, on rank 0.

    Args:
        peers: The ranks.
        trainer: What learns on this one.
        board: What the others say.
        run_log: Hears of a rank that is slow.
    """

    def __init__(self, peers: Peers, trainer: StreamTrainer, board: Board, run_log: RunLog) -> None:
        self._peers, self._trainer, self._board = peers, trainer, board
        self._run_log = run_log
        self._latest: dict[int, RankFigures] = {}
        self._slow = SlowRank()
        self._steps = 0

    def figures(self) -> dict[int, RankFigures]:
        """Return the latest figures of each rank; once the world has ended, those before."""
        try:
            self._latest |= self._board.read()
        except RuntimeError:
            return self._latest
        self._latest[0] = figures_of(self._peers, self._trainer, Order.NONE)
        return dict(sorted(self._latest.items()))

    def after_step(self, record: Mapping[str, Any]) -> None:
        """Hear of a micro-batch; now and then compare the ranks."""
        self._steps += 1
        if self._steps % COMPARED_EVERY:
            return
        found = self._slow.find(self.figures())
        if found is not None:
            rank, times = found
            self._run_log.warning(
                "ranks",
                f"rank {rank} computes {times:.1f} times as long as the median of the ranks, and "
                "all wait for it: see what else its host does",
                rank=rank,
                times=times,
            )

    def health(self) -> Mapping[str, Any]:
        """Return `ranks`: the figures of each, by its number."""
        return {"ranks": self.describe()}

    def describe(self) -> dict[str, Any]:
        """Return the figures of each rank as plain values, by its number."""
        return {str(rank): _plain(figures) for rank, figures in self.figures().items()}

    def metrics(self) -> Mapping[str, Any]:
        """Return values by rank."""
        everyone = self.figures()
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
