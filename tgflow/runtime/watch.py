"""Monitoring of a run: progress, health.json and the memory limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from rich.console import Console

from tgflow.config import Config
from tgflow.report.display import SECONDS_PER_LINE, Display
from tgflow.report.formatting import compact, score
from tgflow.runtime.checkpoints import Component
from tgflow.runtime.files import HEALTH_SECONDS, State, write_health
from tgflow.runtime.log import RunLog
from tgflow.runtime.machine import rss_bytes
from tgflow.runtime.metrics import RunMetrics
from tgflow.runtime.stream import FlowControl, MemoryGuard, MemoryLimit

GRACE_SECONDS = 30.0
"""At the memory limit, before the run stops."""
TICK_SECONDS = 0.25


class Shown(Component):
    """Shows progress on a console while it is entered; with JSON messages, logs it now and then."""

    def __init__(
        self, config: Config, title: str, total: int | None, console: Console, run_log: RunLog
    ) -> None:
        self._run_log, self._display = run_log, None
        if config.operate.log_format == "text":
            self._display = Display(console, title, total, config.continual.metric_names)
        self._logged_at = time.monotonic()

    def __enter__(self) -> Self:
        if self._display is not None:
            self._display.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._display is not None:
            self._display.__exit__(*error)

    def on_step(self, record: Mapping[str, Any]) -> None:
        if self._display is not None:
            self._display.update(record)
        elif time.monotonic() - self._logged_at >= SECONDS_PER_LINE:
            self._logged_at = time.monotonic()
            text = (
                f"{record['stop']:,} events, {compact(record['events_per_second'])} events/s, "
                f"AP {score(record.get('running.ap') or float('nan'))}"
            )
            self._run_log.progress(text, **record)


class Watchdog:
    """Thread that writes health.json, and pauses the stream while memory is short."""

    def __init__(
        self,
        path: Path,
        metrics: RunMetrics,
        memory: MemoryGuard,
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
                if state != written or time.monotonic() - written_at >= HEALTH_SECONDS:
                    write_health(self._path, state, self._metrics.health())
                    written, written_at = state, time.monotonic()
            except Exception as error:  # a watchdog must not end before what it watches
                self._run_log.warning("watchdog", f"health could not be written: {error!r}")
                written, written_at = written or "running", time.monotonic() + HEALTH_SECONDS

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
