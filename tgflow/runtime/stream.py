"""The stream as the trainer gets it: up to a limit, when it is due, paused or stopped if need be.

The trainer pulls it from a thread of its own, so everything in here may wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from tgflow.events import EventBatch
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.pacing import num_played, playback

GRACE_SECONDS = 10.0


class Stopped(Exception):
    """The stream was asked to stop: it has not ended, and what is left of a batch waits."""


class FlowControl:
    """Lets a stream flow, pauses it, or stops it; its methods may be called by any thread."""

    def __init__(self) -> None:
        self._stopped = False
        self.signal: str | None = None
        """The signal that asked the stream to stop, if one did."""
        self._error: BaseException | None = None
        self._paused_since: float | None = None
        self._paused_seconds = 0.0

    @property
    def stopped(self) -> bool:
        """Whether the stream is to stop."""
        return self._stopped

    @property
    def error(self) -> BaseException | None:
        """What it is to stop by; None for a signal, or where it flows."""
        return self._error

    @property
    def paused(self) -> bool:
        """Whether it is paused."""
        return self._paused_since is not None

    @property
    def paused_seconds(self) -> float:
        """How long it was paused, in all."""
        since = self._paused_since
        return self._paused_seconds + (0.0 if since is None else time.monotonic() - since)

    def stop(self, error: BaseException | None = None) -> None:
        """Stop the stream, by `error` if there is one; it wakes up whatever waits.

        Takes no lock that anyone holds while waiting, so that a signal's handler may call it.
        """
        self._error = self._error or error
        self._stopped = True

    def stop_for(self, signal: str) -> None:
        """Stop the stream as `signal` asks."""
        self.signal = signal
        self.stop()

    def pause(self) -> None:
        """Let nothing more through."""
        if self._paused_since is None:
            self._paused_since = time.monotonic()

    def resume(self) -> None:
        """Let it flow again."""
        if self._paused_since is not None:
            self._paused_seconds = self.paused_seconds
            self._paused_since = None

    def wait(self) -> None:
        """Return when the stream may flow.

        Raises:
            Stopped: If it is to stop.
        """
        while self._paused_since is not None and not self._stopped:
            time.sleep(0.02)
        self.check()

    def check(self) -> None:
        """Raise `Stopped`, or the error that it was stopped by, if the stream is to stop."""
        if self._stopped:
            raise self._error or Stopped

    def monotonic(self) -> float:
        """Return seconds since some fixed moment, for a paced stream."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`, or when the stream is to stop."""
        end = time.monotonic() + seconds
        while not self._stopped and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))


class PacedStream:
    """The batches of ingestion as flow control, a limit and a speed let them through.

    A context manager: leaving it stops the stream and closes ingestion.

    Args:
        ingest: The events, in order.
        flow: What pauses and stops it.
        limit: Events from the very first on, those learned before included; None for all.
        speed: Multiple of real time, or None for full speed.
        learned: Events that were learned before.
    """

    def __init__(
        self,
        ingest: Ingest,
        flow: FlowControl,
        *,
        limit: int | None = None,
        speed: float | None = None,
        learned: int = 0,
    ) -> None:
        left = None if limit is None else max(0, limit - learned)
        self._batches = playback(ingest, speed, limit=left, clock=flow)
        self._ingest, self._flow, self._limit = ingest, flow, limit
        self._busy = threading.Lock()
        self.num_events = num_played(ingest, limit)
        """How many events there will be from the very first on, None if that is not known."""

    def __iter__(self) -> Iterator[EventBatch]:
        """Yield the stream's batches.

        Raises:
            Stopped: When flow control stops it, rather than just ending: a stream that has ended is
                learned to its last event.
        """
        while True:
            with self._busy:
                self._flow.wait()
                batch = next(self._batches, None)
                if batch is None:
                    self._flow.check()
                    return
            yield batch

    def __enter__(self) -> PacedStream:
        return self

    def __exit__(self, *error: object) -> None:
        self._flow.stop()
        if self._settle():
            self._ingest.close()

    def share(self, learned: int) -> float | None:
        """Return which share of the stream `learned` events are, None if that cannot be known."""
        total = self.num_events
        if total is None and self._ingest.progress:
            total = int(max(self._ingest.num_released / self._ingest.progress, 1.0))
        known = [size for size in (total, self._limit) if size is not None]
        if not known:
            return None
        return min(learned / min(known), 1.0) if min(known) else 1.0

    def _settle(self) -> bool:
        """Wait until nobody is inside the stream any more; False if that takes too long."""
        if not self._busy.acquire(timeout=GRACE_SECONDS):
            return False
        self._busy.release()
        return True
