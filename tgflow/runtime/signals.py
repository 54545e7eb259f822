"""SIGTERM and SIGINT: the first stops a run where it can resume, the second ends it at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

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
