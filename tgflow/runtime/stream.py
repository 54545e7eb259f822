"""Flow of a stream through a run: pacing, cuts at time steps, stop signals, memory limit."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from types import FrameType
from typing import Any, Literal, Protocol, Self

from torch import OutOfMemoryError

from tgflow.events import MICRO_BATCH_END, EventBatch
from tgflow.plan.in_order import BatchError
from tgflow.report.formatting import num_bytes
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


class SteppedStream:
    """A stream that ends micro-batches with its time steps.

    A step of more events than a micro-batch takes is several, of which only the last may not be
    full. Where steps end is a function of the events alone, so a run that resumes repeats it.

    Args:
        stream: Batches of any size, in order of time.
    """

    def __init__(self, stream: Iterable[EventBatch]) -> None:
        self.unit = getattr(stream, "unit", None)
        """What a tick is, if the stream says so."""
        self._stream = stream

    def __iter__(self) -> Iterator[EventBatch]:
        """Yield the stream's events, and `MICRO_BATCH_END` between those of two times.

        A step has ended when the first event of the next one comes.
        """
        last: int | None = None
        for events in self._stream:
            if not len(events):
                yield events
                continue
            if last is not None and int(events.t[0]) != last:
                yield MICRO_BATCH_END
            last = int(events.t[-1])
            changes = (events.t[1:] != events.t[:-1]).nonzero().flatten() + 1
            for begin, end in pairwise([0, *changes.tolist(), len(events)]):
                if begin:
                    yield MICRO_BATCH_END
                yield events[begin:end]


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """While entered, the first of the signals calls `ask`; a second one ends the process at once.

    Ended so, the exit code is 130 or 143, as the shell has it; what is on the disk stays valid, as
    after a crash. Outside the main thread nothing is done.

    Args:
        ask: Called with the signal's name in the main thread, between two of its instructions: it
            only sets a flag.
    """

    def __init__(self, ask: Callable[[str], None]) -> None:
        self._ask = ask
        self._asked = False
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
        if self._asked:
            os._exit(128 + number)
        self._asked = True
        self._ask(signal.Signals(number).name)


PAUSE_SHARE = 0.95
RESUME_SHARE = 0.90


class MemoryLimit(RuntimeError):
    """The process held more memory than it may, for too long."""


class Judge(Protocol):
    """Judges the memory that is held, of this process or of more."""

    def judge(self, rss: int) -> Literal["pause", "resume", "none"]:
        """Return what to do with the stream, given that this process holds `rss` bytes.

        Raises:
            MemoryLimit: If it is to end.
        """


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether a GPU or the host had no memory left, be it to prepare a batch."""
    cause = error.__cause__ if isinstance(error, BatchError) else error
    return isinstance(cause, MemoryError | OutOfMemoryError)


@dataclass(slots=True)
class MemoryGuard:
    """Judges samples of the memory that the process holds.

    Args:
        limit: Bytes it may hold; None: any.
        grace: Seconds at the limit before it is an error, half of those just below it.
        clock: Seconds that never go back.
    """

    limit: int | None
    grace: float
    clock: Callable[[], float] = time.monotonic
    _since: dict[str, float] = field(default_factory=dict, init=False)

    def judge(self, rss: int) -> Literal["pause", "resume", "none"]:
        """Return what to do with the stream, given that `rss` bytes are held.

        Raises:
            MemoryLimit: If that is the limit or more, and was all through the grace time; or if
                pausing the stream has not helped for twice that.
        """
        if self.limit is None:
            return "none"
        self._note("full", begins=rss >= self.limit, ends=rss < self.limit)
        self._note(
            "paused", begins=rss >= PAUSE_SHARE * self.limit, ends=rss < RESUME_SHARE * self.limit
        )
        if self._lasts("full", self.grace) or self._lasts("paused", 2 * self.grace):
            raise MemoryLimit(
                f"the process holds {num_bytes(rss)} of memory_limit = {num_bytes(self.limit)}, "
                f"also after {self.grace:g} s without new events; give it more, or a smaller "
                "buffer, replay_horizon or batch"
            )
        if "paused" in self._since:
            return "pause"
        return "resume"

    def _note(self, name: str, *, begins: bool, ends: bool) -> None:
        if ends:
            self._since.pop(name, None)
        elif begins:
            self._since.setdefault(name, self.clock())

    def _lasts(self, name: str, seconds: float) -> bool:
        return name in self._since and self.clock() - self._since[name] >= seconds
