"""Bounded memory: near its limit the stream is held back, and at it the run ends in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from tgflow.run.figures import num_bytes

PAUSE_SHARE = 0.95
GO_ON_SHARE = 0.90


class MemoryLimit(RuntimeError):
    """The process held more memory than it may, for too long."""


@dataclass(slots=True)
class Pressure:
    """Judges samples of the memory that the process holds.

    Args:
        limit: Bytes it may hold; None: any.
        grace: Seconds at the limit before it is an error.
        clock: Seconds that never go back.
    """

    limit: int | None
    grace: float
    clock: Callable[[], float] = time.monotonic
    _full_since: float | None = field(default=None, init=False)

    def judge(self, rss: int) -> Literal["hold", "let go", "as it is"]:
        """Return what to do with the stream, given that `rss` bytes are held.

        Raises:
            MemoryLimit: If that is the limit or more, and was all through the grace time.
        """
        if self.limit is None:
            return "as it is"
        if rss < self.limit:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = self.clock()
        if self._full_since is not None and self.clock() - self._full_since >= self.grace:
            raise MemoryLimit(
                f"the process holds {num_bytes(rss)} of memory_limit = {num_bytes(self.limit)} for "
                f"{self.grace:g} s; give it more, or a smaller buffer, replay_horizon or batch"
            )
        if rss >= PAUSE_SHARE * self.limit:
            return "hold"
        return "let go" if rss < GO_ON_SHARE * self.limit else "as it is"
