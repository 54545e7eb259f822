"""The stream as the trainer gets it: up to a limit, when it is due, held back or ended if need be.

The trainer pulls it from a thread of its own, so everything in here may wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tgflow.events import EventBatch
from tgflow.streams import playback

GRACE_SECONDS = 10.0


class Stopped(Exception):
    """The stream was asked to stop: it has not ended, and what is left of a batch waits."""


class FlowControl:
    """Lets a stream flow, holds it back, or stops it; its methods may be called by any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._stopped = False
        self.asked_by: str | None = None
        """The signal that asked the stream to end, if one did."""
        self._error: BaseException | None = None
        self._held_since: float | None = None
        self._held_seconds = 0.0

    @property
    def stopped(self) -> bool:
        """Whether the stream is to end."""
        return self._stopped

    @property
    def held(self) -> bool:
        """Whether it is held back."""
        return self._held_since is not None

    @property
    def held_seconds(self) -> float:
        """How long it was held back, in all."""
        since = self._held_since
        return self._held_seconds + (0.0 if since is None else time.monotonic() - since)

    def stop(self, error: BaseException | None = None) -> None:
        """End the stream, by `error` if there is one; it wakes up whatever waits.

        Takes no lock that anyone holds while waiting, so that a signal's handler may call it.
        """
        self._error = self._error or error
        self._stopped = True

    def ask(self, name: str) -> None:
        """End the stream as the signal `name` asks."""
        self.asked_by = name
        self.stop()

    def hold(self) -> None:
        """Let nothing more through."""
        if self._held_since is None:
            self._held_since = time.monotonic()

    def let_go(self) -> None:
        """Let it flow again."""
        if self._held_since is not None:
            self._held_seconds = self.held_seconds
            self._held_since = None

    def pass_through(self) -> None:
        """Return when the stream may flow.

        Raises:
            Stopped: If it is to end.
        """
        while self._held_since is not None and not self._stopped:
            time.sleep(0.02)
        if self._stopped:
            raise self._error or Stopped

    def monotonic(self) -> float:
        """Return seconds since some fixed moment, for a paced stream."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`, or when the stream is to end."""
        end = time.monotonic() + seconds
        while not self._stopped and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))


@dataclass(slots=True)
class _Limited:
    """The first events of a stream; a source for `playback`."""

    batches: Iterable[EventBatch]
    left: int | None
    unit: str

    def __iter__(self) -> Iterator[EventBatch]:
        if self.left == 0:
            return
        for batch in self.batches:
            part = batch if self.left is None or len(batch) <= self.left else batch[: self.left]
            if self.left is not None:
                self.left -= len(part)
            yield part
            if self.left == 0:
                return


class PacedStream:
    """Iterates over batches as a valve, a limit and a speed let it.

    Args:
        batches: The stream, in order.
        valve: What holds it back.
        unit: What its ticks are.
        limit: Events to let through, or None.
        speed: Multiple of real time, or None for full speed.
    """

    def __init__(
        self,
        batches: Iterable[EventBatch],
        valve: FlowControl,
        unit: str,
        limit: int | None = None,
        speed: float | None = None,
    ) -> None:
        limited = _Limited(batches, limit, unit)
        self._batches = playback(limited, speed, clock=valve)  # type: ignore[arg-type]
        self._valve = valve
        self._busy = threading.Lock()
        self.num_events = 0
        """Events let through so far."""

    def __iter__(self) -> Iterator[EventBatch]:
        """Yield the stream's batches.

        Raises:
            Stopped: When the valve stops it, rather than just ending: a stream that has ended is
                learned to its last event.
        """
        while True:
            with self._busy:
                self._valve.pass_through()
                batch = next(self._batches, None)
                if batch is None:
                    if self._valve.stopped:
                        self._valve.pass_through()
                    return
                self.num_events += len(batch)
            yield batch

    def settle(self) -> bool:
        """Wait until nobody is inside the stream any more; False if that takes too long."""
        if not self._busy.acquire(timeout=GRACE_SECONDS):
            return False
        self._busy.release()
        return True
