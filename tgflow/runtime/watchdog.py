"""A thread beside the run: it writes health.json and looks after the memory, come events or not."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Self

from tgflow.runtime.health import SECONDS, State, write_health
from tgflow.runtime.log import RunLog
from tgflow.runtime.machine import rss_bytes
from tgflow.runtime.memory import MemoryGuard, MemoryLimit
from tgflow.runtime.metrics import RunMetrics
from tgflow.runtime.stream import FlowControl

TICK_SECONDS = 0.25


class Watchdog:
    """Watches a run while it is entered.

    Args:
        path: health.json.
        figures: What it says.
        pressure: Judges the memory.
        valve: Held while memory is short; stopped by `MemoryLimit` when it stays so.
        notes: Hears of both.
    """

    def __init__(
        self,
        path: Path,
        figures: RunMetrics,
        pressure: MemoryGuard,
        valve: FlowControl,
        notes: RunLog,
    ) -> None:
        self._path, self._figures, self._pressure = path, figures, pressure
        self._valve, self._notes = valve, notes
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tgflow-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()
        write_health(self._path, self._figures.state, self._figures.health())

    def _run(self) -> None:
        told: State | None = None
        told_at = 0.0
        while not self._end.wait(TICK_SECONDS if told else 0.0):
            try:
                self._look_at_memory()
                state = self._figures.state
                if state != told or time.monotonic() - told_at >= SECONDS:
                    write_health(self._path, state, self._figures.health())
                    told, told_at = state, time.monotonic()
            except Exception as error:  # who watches must not end before what is watched
                self._notes.warning("watch", f"health could not be told: {error!r}")
                told, told_at = told or "running", time.monotonic() + SECONDS

    def _look_at_memory(self) -> None:
        if self._valve.stopped:
            return
        try:
            verdict = self._pressure.judge(rss_bytes())
        except MemoryLimit as error:
            self._valve.stop(error)
            return
        if verdict == "hold" and not self._valve.held:
            self._valve.hold()
            self._notes.warning("memory", "memory is short: the stream is held back")
        elif verdict == "let go" and self._valve.held:
            self._valve.let_go()
            self._notes.info("memory", "there is memory again: the stream flows")
