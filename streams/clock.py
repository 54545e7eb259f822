"""What waits: the clock of the machine, or one that a test brings."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What playback and retries wait by; tests bring their own."""

    def monotonic(self) -> float:
        """Return seconds since some fixed moment; they never go back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        ...


class SystemClock:
    """The clock of the machine."""

    def monotonic(self) -> float:
        """Return seconds since some fixed moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`."""
        time.sleep(seconds)
