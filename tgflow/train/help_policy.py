"""Whether help is worth its while, by the clock."""

from __future__ import annotations

import statistics
from typing import Protocol

TRIALS = 6
"""Turns with help, and as many without, by which it is decided."""
TURNS = 96
"""After which it is tried again, these included."""
LEAST_GAIN = 0.05
"""By how much turns with help must be faster."""


class HelpPolicy(Protocol):
    """Says of each turn whether it has help. Nothing but time may depend on that."""

    @property
    def is_on(self) -> bool:
        """Whether the next turn has help."""
        ...

    def took(self, seconds: float) -> None:
        """Hear how long that turn took."""
        ...


class MeasuredHelp:
    """Tries some turns with help and some without, alternately, and goes on as was faster."""

    def __init__(self) -> None:
        self._turn = 0
        self._gains = False
        self._seconds: dict[bool, list[float]] = {True: [], False: []}

    @property
    def is_on(self) -> bool:
        """Whether the next turn has help."""
        return self._turn % 2 == 0 if self._turn < 2 * TRIALS else self._gains

    def took(self, seconds: float) -> None:
        """Hear how long that turn took."""
        if self._turn < 2 * TRIALS:
            self._seconds[self.is_on].append(seconds)
        self._turn += 1
        if self._turn == 2 * TRIALS:
            helped, alone = (statistics.median(self._seconds[on]) for on in (True, False))
            self._gains = helped * (1 + LEAST_GAIN) <= alone
        if self._turn == TURNS:
            self._turn, self._seconds = 0, {True: [], False: []}
