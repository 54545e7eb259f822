"""A thread beside the run: it writes health.json and watches the memory, come events or not."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Self

from tgflow.runtime.health import SECONDS, State, write_health
from tgflow.runtime.log import RunLog
from tgflow.runtime.machine import rss_bytes
from tgflow.runtime.memory import Judge, MemoryLimit
from tgflow.runtime.metrics import RunMetrics
from tgflow.runtime.stream import FlowControl

TICK_SECONDS = 0.25


class Watchdog:
    """Watches a run while it is entered.

    Args:
        path: health.json.
        metrics: What it says.
        memory: Judges the memory.
        flow: Paused while memory is short; stopped by `MemoryLimit` when it stays so.
        run_log: Hears of both.
    """

    def __init__(
        self,
        path: Path,
        metrics: RunMetrics,
        memory: Judge,
        flow: FlowControl,
        run_log: RunLog,
    ) -> None:
        self._path, self._metrics, self._memory = path, metrics, memory
        self._flow, self._run_log = flow, run_log
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tgflow-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()
        write_health(self._path, self._metrics.state, self._metrics.health())

    def _run(self) -> None:
        written: State | None = None
        written_at = 0.0
        while not self._end.wait(TICK_SECONDS if written else 0.0):
            try:
                self._watch_memory()
                state = self._metrics.state
                if state != written or time.monotonic() - written_at >= SECONDS:
                    write_health(self._path, state, self._metrics.health())
                    written, written_at = state, time.monotonic()
            except Exception as error:  # a watchdog must not end before what it watches
                self._run_log.warning("watchdog", f"health could not be written: {error!r}")
                written, written_at = written or "running", time.monotonic() + SECONDS

    def _watch_memory(self) -> None:
        if self._flow.stopped:
            return
        try:
            verdict = self._memory.judge(rss_bytes())
        except MemoryLimit as error:
            self._flow.stop(error)
            return
        if verdict == "pause" and not self._flow.paused:
            self._flow.pause()
            self._run_log.warning("memory", "memory is short: the stream is paused")
        elif verdict == "resume" and self._flow.paused:
            self._flow.resume()
            self._run_log.info("memory", "there is memory again: the stream flows")
