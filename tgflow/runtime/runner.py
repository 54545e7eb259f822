"""The run itself: micro-batch after micro-batch, kept now and then, until something ends it."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from tgflow.report.display import Display
from tgflow.report.formatting import compact, score
from tgflow.runtime.build import Session
from tgflow.runtime.checkpoints import CheckpointScheduler
from tgflow.runtime.exporter import Exporter
from tgflow.runtime.log import RunLog
from tgflow.runtime.machine import rss_bytes
from tgflow.runtime.memory import MemoryGuard, MemoryLimit
from tgflow.runtime.metrics import RunMetrics, Status
from tgflow.runtime.stream import Stopped
from tgflow.runtime.table_stats import HitRates, table_figures
from tgflow.runtime.watchdog import Watchdog
from tgflow.streams.errors import StreamError
from tgflow.train.observe import StepRecord
from tgflow.units import parse_bytes

SECONDS_PER_LINE = 5.0
GRACE_SECONDS = 30.0
"""At the memory limit, before the run stops."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended, with all of it kept."""

    stopped: bool
    """By a signal: there may be more to come."""
    state_sha256: str | None
    """Digest of model, optimizer, memory, events and ids."""
    stream: Mapping[str, Any]
    """What became of the rows, as `Ingest.report` says it."""
    tables: Mapping[str, Any]
    """Where features are, and what caches did, as `table_figures` says it."""


def run(session: Session, console: Console) -> RunResult:
    """Learn from the session's stream until it ends, a signal stops it, or something fails.

    Whatever can be kept is: after all of these but a failing disk, a loss that is not finite and
    faults of ours, the newest checkpoint holds every micro-batch learned.

    Raises:
        StreamError: What the source says; `SourceUnavailable` if it was out of reach for too long.
        MemoryLimit: If memory was short for too long.
        TrainingDiverged: If a loss or score is not finite.
        OSError: If log, dead letters or three checkpoints in a row could not be written.
        Unbalanced: If a row got lost.
    """
    return _Run(session, console).run()


class _Run:
    def __init__(self, session: Session, console: Console) -> None:
        self._session, self._console = session, console
        self._notes = session.notes
        self._status = Status()
        self._keeper = CheckpointScheduler(session)
        self._figures = RunMetrics(session, self._keeper, self._status)
        self._hit_rates = HitRates(session.trainer.graph)
        self._started = self._said = time.monotonic()

    def run(self) -> RunResult:
        session = self._session
        operate = session.config.operate
        limit = operate.memory_limit
        pressure = MemoryGuard(None if limit is None else parse_bytes(limit), GRACE_SECONDS)
        health = session.place.path / "health.json"
        with ExitStack() as stack:
            stack.enter_context(_library_messages(self._notes))
            stack.callback(session.close)
            self._serve_metrics(stack)
            stack.enter_context(
                Watchdog(health, self._figures, pressure, session.valve, self._notes)
            )
            try:
                return self._go()
            except BaseException as error:
                self._status.state, self._status.reason = "failed", str(error)
                raise

    def _serve_metrics(self, stack: ExitStack) -> None:
        operate, session = self._session.config.operate, self._session
        if operate.metrics_port is None:
            return
        labels = {
            "model": session.config.model.name,
            "stream": session.ingest.source.name,
            "run": str(session.place.path),
        }
        exporter = Exporter(
            self._figures.metrics, labels, operate.metrics_port, operate.metrics_host
        )
        stack.callback(exporter.close)
        at = f"http://{operate.metrics_host}:{exporter.port}/metrics"
        self._notes.info("metrics", f"metrics at {at}", port=exporter.port)

    def _go(self) -> RunResult:
        """Learn, and keep what was learned."""
        self._say_start()
        stopped = False
        try:
            with self._display() as update:
                stopped = self._learn(update)
        except (StreamError, MemoryLimit) as error:
            self._keep_before(error)
            raise
        self._status.state = "stopping"
        digest = self._keeper.finish()
        self._status.state = "stopped" if stopped else "done"
        return RunResult(
            stopped, digest, self._report(), table_figures(self._session.trainer.graph)
        )

    def _learn(self, update: Callable[[Mapping[str, Any]], None]) -> bool:
        """Learn until the stream ends, or is stopped; True if it was a signal.

        Raises:
            MemoryLimit: If the watch stopped it.
        """
        session = self._session
        self._status.state = "running" if session.resumed_at is None else "recovering"
        try:
            for step in session.trainer.steps(session.supply):
                self._note_step(step, update)
                self._keeper.after_step()
                if session.valve.stopped:
                    session.valve.pass_through()
        except Stopped:
            return True
        return False

    def _note_step(self, step: StepRecord, update: Callable[[Mapping[str, Any]], None]) -> None:
        session = self._session
        record = {
            **step.as_dict(),
            **self._hit_rates.lately(),
            "elapsed": session.elapsed + time.monotonic() - self._started,
            "rss_bytes": rss_bytes(),
        }
        share = self._share(step.stop)
        if share is not None:
            record["progress"] = share
        session.place.rundir.log(record)
        self._status.record, self._status.stepped_at = record, time.monotonic()
        if self._status.state == "recovering":
            self._status.state = "running"
        update(record)

    def _share(self, done: int) -> float | None:
        """Return which share of the stream is learned, as far as can be told."""
        ingest, total = self._session.ingest, self._total()
        if total is None and ingest.progress:
            total = int(max(ingest.num_released / ingest.progress, 1.0))
        limit = self._session.config.stream.limit
        known = [size for size in (total, limit) if size is not None]
        if not known:
            return None
        return min(done / min(known), 1.0) if min(known) else 1.0

    def _total(self) -> int | None:
        """Return how many events there will be, or None if that is not known."""
        known, limit = self._session.ingest.num_events, self._session.config.stream.limit
        return min(known, limit) if known is not None and limit is not None else known

    @contextmanager
    def _display(self) -> Iterator[Callable[[Mapping[str, Any]], None]]:
        """Show the micro-batches to people, or tell of them now and then in JSON."""
        config = self._session.config
        title = f"{config.model.name.upper()} learning from {config.stream.path}"
        if config.operate.log_format == "json":
            yield self._tell
            return
        with Display(self._console, title, self._total()) as display:
            yield display.update

    def _tell(self, record: Mapping[str, Any]) -> None:
        if time.monotonic() - self._said < SECONDS_PER_LINE:
            return
        self._said = time.monotonic()
        text = (
            f"{record['stop']:,} events, {compact(record['events_per_second'])} events/s, "
            f"AP {score(record.get('running.ap') or float('nan'))}"
        )
        self._notes.progress(text, **record)

    def _keep_before(self, error: Exception) -> None:
        """Keep what was learned before `error` ends the run."""
        try:
            self._keeper.finish()
            self._report()
        except OSError as failed:
            text = f"what was learned last could not be kept: {failed}"
            self._notes.warning("checkpoint", f"{text}; the run ends because of: {error}")

    def _report(self) -> dict[str, Any]:
        """Write and return what became of the rows, and how many events wait to be learned.

        A run that goes on and has nothing left to learn polls nothing: what it said before holds.
        """
        session, rundir = self._session, self._session.place.rundir
        report = session.ingest.report()
        if not session.ingest.has_polled and (before := rundir.read_json("stream.json")):
            return before
        learned = session.trainer.position
        report |= {"num_learned": learned, "num_waiting": max(0, report["num_released"] - learned)}
        rundir.write_json("stream.json", report)
        return report

    def _say_start(self) -> None:
        session = self._session
        at = session.resumed_at
        what = "begins" if at is None else f"goes on at event {at:,}"
        self._notes.info(
            "start",
            f"{session.config.model.name} {what}, stream {session.ingest.source.name}",
            position=session.trainer.position,
            **session.build,
        )


@contextmanager
def _library_messages(notes: RunLog) -> Iterator[None]:
    """Let what tgflow's sources log reach the notes, meanwhile; the keeper notes failed writes."""
    logger = logging.getLogger("tgflow")
    handler = _ToNotes(notes)
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "no checkpoint at step", RuntimeWarning)
            yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


class _ToNotes(logging.Handler):
    def __init__(self, notes: RunLog) -> None:
        super().__init__(logging.INFO)
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        event = record.name.rpartition(".")[2]
        if record.levelno >= logging.WARNING:
            self._notes.warning(event, record.getMessage())
        else:
            self._notes.info(event, record.getMessage())
