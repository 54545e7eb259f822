"""How ranks are, as rank 0 knows it, and what they ask for beside the training."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, Self

from tgflow.distributed.board import Board
from tgflow.distributed.control import Order, RankFigures
from tgflow.distributed.slow_rank import SlowRank
from tgflow.runtime.log import RunLog
from tgflow.runtime.machine import rss_bytes
from tgflow.runtime.memory import MemoryGuard, MemoryLimit
from tgflow.runtime.stream import FlowControl
from tgflow.train.rank_control import RankControl

COMPARED_EVERY = 100
"""Micro-batches over which the ranks' seconds are compared."""
KINDS = {"gradient": "gradient", "rows": "rows", "queries": "query", "other": "other"}
"""What is sent, and what `RankFigures` calls it."""
_TICK = 0.25
_GRACE = 1.0


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


class RankMetrics:
    """What there is to say of all ranks, on rank 0.

    Args:
        control: Gets the figures of all ranks with each micro-batch.
        run_log: Hears of a rank that is slow.
    """

    def __init__(self, control: RankControl, run_log: RunLog) -> None:
        self._control, self._run_log = control, run_log
        self._slow = SlowRank()
        self._steps = 0

    def figures(self) -> dict[int, RankFigures]:
        """Return the figures of each rank, as of the latest micro-batch; empty before the first."""
        return dict(enumerate(self._control.figures))

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
