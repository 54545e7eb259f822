"""Monitoring of a run: metrics, health.json, memory limit and progress display."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, Self

from rich.console import Console

from tgflow.config.schema import OperateConfig
from tgflow.report.display import Display
from tgflow.runtime.checkpoints import Component
from tgflow.runtime.files import HEALTH_SECONDS, State, write_health
from tgflow.runtime.log import ProgressLog, RunLog
from tgflow.runtime.machine import rss_bytes
from tgflow.runtime.metrics import (
    Exporter,
    RunCollector,
    RunMetrics,
)
from tgflow.runtime.stream import FlowControl, Judge, MemoryGuard, MemoryLimit
from tgflow.units import parse_bytes

GRACE_SECONDS = 30.0
"""At the memory limit, before the run stops."""


def memory_limit(operate: OperateConfig) -> int | None:
    """Return the bytes that this process may hold; None: any."""
    return None if operate.memory_limit is None else parse_bytes(operate.memory_limit)


def memory_guard(operate: OperateConfig) -> MemoryGuard:
    """Return the judge of this process's memory."""
    return MemoryGuard(memory_limit(operate), GRACE_SECONDS)


def serve_metrics(
    collector: RunCollector, operate: OperateConfig, run_log: RunLog, opened: ExitStack
) -> None:
    """Serve metrics over HTTP until `opened` is closed, if the settings name a port."""
    if operate.metrics_port is None:
        return
    exporter = Exporter(collector, operate.metrics_port, operate.metrics_host)
    opened.callback(exporter.close)
    at = f"http://{operate.metrics_host}:{exporter.port}/metrics"
    run_log.info("metrics", f"metrics at {at}", port=exporter.port)


def make_display(
    operate: OperateConfig,
    title: str,
    console: Console,
    num_events: int | None,
    metric_names: Sequence[str],
    run_log: RunLog,
) -> tuple[AbstractContextManager[object], Component]:
    """Return the progress display, or a log of progress for `--log-format json`."""
    if operate.log_format == "json":
        return nullcontext(), _Shown(ProgressLog(run_log).update)
    display = Display(console, title, num_events, metric_names)
    return display, _Shown(display.update)


class _Shown(Component):
    """Passes each record to a display.

    Args:
        show: Updates the display.
    """

    def __init__(self, show: Callable[[Mapping[str, Any]], None]) -> None:
        self._show = show

    def on_step(self, record: Mapping[str, Any]) -> None:
        """Show the record."""
        self._show(record)


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
