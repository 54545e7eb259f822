"""Bounded memory: near its limit the stream is paused, and at it the run ends in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import OutOfMemoryError

from tgflow.plan.task import BatchError
from tgflow.report.formatting import num_bytes

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
