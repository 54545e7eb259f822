"""Flow of a stream through a run: pauses, stop signals, memory limit."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from torch import OutOfMemoryError

from tgflow.plan.in_order import BatchError
from tgflow.ranks.control import Order
from tgflow.ranks.supervise import TOGETHER_SECONDS
from tgflow.report.formatting import num_bytes


class Stopped(Exception):
    """Raised on a stop request: the stream has not ended, and the rest of a batch is kept."""


class FlowControl:
    """Runs, pauses or stops a stream. Thread-safe."""

    def __init__(self) -> None:
        self.stopped = False
        self.signal: str | None = None
        """Name of the signal that requested the stop, if any."""
        self.error: BaseException | None = None
        """The error that stops it; None for a signal, or while it runs."""
        self._is_opening = False
        self._paused_since: float | None = None
        self._paused_seconds = 0.0

    @property
    def paused(self) -> bool:
        return self._paused_since is not None

    @property
    def paused_seconds(self) -> float:
        since = self._paused_since
        return self._paused_seconds + (0.0 if since is None else time.monotonic() - since)

    def stop(self, error: BaseException | None = None) -> None:
        """Stop the stream, with `error` if there is one. Lock-free, as signal handlers call it."""
        self.error = self.error or error
        self.stopped = True

    def stop_for(self, signal: str) -> None:
        self.signal = signal
        self.stop()
        if self._is_opening:
            raise Stopped(f"stopped by {signal} before the stream began; nothing was read")

    @contextmanager
    def opening(self) -> Iterator[None]:
        """While entered, `stop_for` raises `Stopped`: a pipe may have no writer for long."""
        self._is_opening = True
        try:
            yield
        finally:
            self._is_opening = False

    def pause(self) -> None:
        if self._paused_since is None:
            self._paused_since = time.monotonic()

    def resume(self) -> None:
        if self._paused_since is not None:
            self._paused_seconds = self.paused_seconds
            self._paused_since = None

    def wait(self) -> None:
        """Block while the stream is paused; raises as `check`."""
        while self._paused_since is not None and not self.stopped:
            time.sleep(0.02)
        self.check()

    def check(self) -> None:
        if self.stopped:
            raise self.error or Stopped

    def request(self) -> Order:
        """Return what a stop or a pause of this rank's stream asks of all ranks."""
        if self.stopped:
            is_full = isinstance(self.error, MemoryLimit)
            return Order.STOP_FOR_MEMORY if is_full else Order.STOP
        return Order.HOLD if self.paused else Order.NONE

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self.stopped and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """While entered, the first of the signals calls `ask`; a second one ends the process at once.

    Those within `TOGETHER_SECONDS` of the first count as one with it. The exit code is 130 or 143,
    as in a shell; the files on disk stay valid, as after a crash.
    Outside the main thread it does nothing.
    """

    def __init__(self, ask: Callable[[str], None]) -> None:
        self._ask = ask
        self._asked_at: float | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            self._ask(signal.Signals(number).name)
        elif time.monotonic() - self._asked_at > TOGETHER_SECONDS:
            os._exit(128 + number)


PAUSE_SHARE = 0.95
RESUME_SHARE = 0.90


class MemoryLimit(RuntimeError):
    """Raised when the process has exceeded its memory limit for too long."""


def rank_at_limit(who: str) -> MemoryLimit:
    """Return the error of the ranks other than `who`."""
    return MemoryLimit(f"{who} is at its memory_limit; see its log")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether a GPU or the host ran out of memory, including while preparing a batch."""
    cause = error.__cause__ if isinstance(error, BatchError) else error
    return isinstance(cause, MemoryError | OutOfMemoryError)


class MemoryGuard:
    """Pauses the stream or ends the run depending on the memory of the process."""

    def __init__(self, limit: int | None, grace: float) -> None:
        self._limit, self._grace = limit, grace
        self._full_since: float | None = None
        self._paused_since: float | None = None

    def is_short(self, rss: int) -> bool:
        """Return whether the stream must pause at `rss` bytes, or raise MemoryLimit."""
        limit, now = self._limit, time.monotonic()
        if limit is None:
            return False
        if rss < limit:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = now
        if rss < RESUME_SHARE * limit:
            self._paused_since = None
        elif rss >= PAUSE_SHARE * limit and self._paused_since is None:
            self._paused_since = now
        grace = self._grace
        for since, seconds in ((self._full_since, grace), (self._paused_since, 2 * grace)):
            if since is not None and now - since >= seconds:
                raise MemoryLimit(
                    f"the process holds {num_bytes(rss)} of memory_limit = {num_bytes(limit)}, "
                    f"even after {grace:g} s without new events; raise it, use a smaller buffer, "
                    "replay_horizon or batch, or forget old events: --horizon, --horizon-events"
                )
        return self._paused_since is not None
