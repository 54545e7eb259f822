"""Monitoring of a run: progress, health.json and the memory limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from rich.console import Console

from tgflow.base.units import duration
from tgflow.checkpoint import Component
from tgflow.report.display import SECONDS_PER_LINE, Display
from tgflow.report.formatting import compact, score
from tgflow.run.log import RunLog
from tgflow.run.machine import anonymous_bytes
from tgflow.run.metrics import RunMetrics
from tgflow.run.records import HEALTH_SECONDS, State, write_health
from tgflow.run.stream import FlowControl, MemoryGuard, MemoryLimit
from tgflow.train.observe import Callback, StepRecord

GRACE_SECONDS = 30.0
"""Seconds at the memory limit before the run stops."""
TICK_SECONDS = 0.25
JOIN_SECONDS = 5.0
WAIT_SECONDS = 2.0
"""Seconds of silence after which a partition that events wait for is shown."""


class Shown(Component, Callback):
    """Shows progress on a console while `display` is entered; without one, logs it periodically."""

    def __init__(
        self,
        title: str,
        total: int | None,
        metrics: Mapping[str, str],
        console: Console | None,
        run_log: RunLog,
        waits: Callable[[], Mapping[str, float]] = dict,
        *,
        learns: bool = True,
    ) -> None:
        self._run_log, self._logged_at = run_log, time.monotonic()
        self.display: Display | nullcontext[None] = nullcontext()
        if console is not None:
            note = partial(waiting, waits)
            self.display = Display(console, title, total, metrics, note, learns=learns)

    def on_step(self, record: StepRecord) -> None:
        if isinstance(self.display, Display):
            self.display.update(record.to_json())
        elif time.monotonic() - self._logged_at >= SECONDS_PER_LINE:
            self._logged_at = time.monotonic()
            text = (
                f"{record.stop:,} events, {compact(record.events_per_second)} events/s, "
                f"AP {score(record.running.get('ap') or float('nan'))}"
            )
            self._run_log.progress(text, **record.to_json())


def waiting(waits: Callable[[], Mapping[str, float]]) -> str:
    """Describe which partitions events have been waiting for, if for a while."""
    found = [(seconds, p) for p, seconds in waits().items() if seconds >= WAIT_SECONDS]
    parts = [f"{p} (silent for {duration(seconds)})" for seconds, p in sorted(found)[:-3:-1]]
    more = f" and {len(found) - 2} more" if len(found) > 2 else ""
    return f"waiting for partition {', '.join(parts)}{more}" if found else ""


@contextmanager
def repeating(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` in a thread, at once and every quarter of a second, while entered."""
    end = threading.Event()

    def run() -> None:
        act()
        while not end.wait(TICK_SECONDS):
            act()

    thread = threading.Thread(target=run, name="tgflow-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(JOIN_SECONDS)


@contextmanager
def watchdog(
    path: Path,
    metrics: RunMetrics,
    memory: MemoryGuard,
    flow: FlowControl,
    run_log: RunLog,
    must_stop: Callable[[], bool],
) -> Iterator[None]:
    """Write health.json to `path` while entered, and pause the stream while memory is short.

    The stream is stopped once `must_stop`.
    """
    written: State | None = None
    written_at = 0.0

    def watch() -> None:
        nonlocal written, written_at
        try:
            watch_memory(memory, flow, run_log)
            if not flow.stopped and must_stop():
                flow.stop()
            state = metrics.state
            for text in metrics.warnings():
                run_log.warning("outlook", text)
            if state != written or time.monotonic() - written_at >= HEALTH_SECONDS:
                write_health(path, state, metrics.health())
                written, written_at = state, time.monotonic()
        except Exception as error:  # a watchdog must outlive the training it watches
            run_log.warning("watchdog", f"health could not be written: {error!r}")
            written, written_at = written or "running", time.monotonic() + HEALTH_SECONDS

    try:
        with repeating(watch):
            yield
    finally:
        write_health(path, metrics.state, metrics.health())


def watch_memory(memory: MemoryGuard, flow: FlowControl, run_log: RunLog) -> None:
    if flow.stopped:
        return
    try:
        is_short = memory.is_short(anonymous_bytes())
    except MemoryLimit as error:
        flow.stop(error)
        return
    if is_short and not flow.paused:
        flow.pause()
        run_log.warning("memory", "memory is short: the stream is paused")
    elif flow.paused and not is_short:
        flow.resume()
        run_log.info("memory", "memory is available again: the stream continues")
