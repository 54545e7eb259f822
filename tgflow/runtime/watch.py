"""The parts that watch a run and show it: metrics, health, memory, progress."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext

from rich.console import Console

from tgflow.config import Config
from tgflow.durable.log import DurableLog
from tgflow.report.display import Display
from tgflow.runtime.checkpoints import Checkpoints
from tgflow.runtime.directory import RunDirectory
from tgflow.runtime.exporter import Exporter, RunCollector
from tgflow.runtime.log import RunLog
from tgflow.runtime.memory import Judge, MemoryGuard
from tgflow.runtime.metrics import (
    CheckpointMetrics,
    IngestMetrics,
    MetricSource,
    ProcessMetrics,
    RunMetrics,
    TrainerMetrics,
)
from tgflow.runtime.progress_log import ProgressLog
from tgflow.runtime.runner import Observer, RunStatus
from tgflow.runtime.stream import FlowControl
from tgflow.runtime.watchdog import Watchdog
from tgflow.streams.ingest.ingest import Ingest
from tgflow.train.stream_trainer import StreamTrainer
from tgflow.units import parse_bytes

GRACE_SECONDS = 30.0
"""At the memory limit, before the run stops."""


def make_metrics(
    status: RunStatus,
    flow: FlowControl,
    config: Config,
    trainer: StreamTrainer,
    ingest: Ingest,
    checkpoints: Checkpoints,
    log: DurableLog | None,
    directory: RunDirectory,
    others: Sequence[MetricSource] = (),
) -> RunMetrics:
    """Return the metrics of a run with ingestion, and those of `others`."""
    rows = IngestMetrics(ingest, trainer)
    sources: list[MetricSource] = [
        TrainerMetrics(trainer),
        CheckpointMetrics(checkpoints, log, directory.path / "dead-letters"),
        rows,
        ProcessMetrics(flow, _memory_limit(config)),
        *others,
    ]
    size = config.continual.batch_size
    return RunMetrics(status, flow, lambda: rows.num_waiting >= size, sources)


def make_watchdog(
    directory: RunDirectory, metrics: RunMetrics, judge: Judge, flow: FlowControl, run_log: RunLog
) -> Watchdog:
    """Return what writes health.json and watches the memory."""
    return Watchdog(directory.path / "health.json", metrics, judge, flow, run_log)


def memory_guard(config: Config) -> MemoryGuard:
    """Return what judges the memory of this process."""
    return MemoryGuard(_memory_limit(config), GRACE_SECONDS)


def collect_metrics(
    metrics: RunMetrics, directory: RunDirectory, name: str, source: str
) -> RunCollector:
    """Return what collects the metrics of a run for Prometheus."""
    labels = {"model": name, "stream": source, "run": str(directory.path)}
    return RunCollector(metrics.metrics, labels)


def serve_metrics(
    collector: RunCollector, directory: RunDirectory, run_log: RunLog, opened: ExitStack
) -> None:
    """Serve metrics over HTTP until `opened` is closed, if the settings name a port."""
    operate = directory.config.operate
    if operate.metrics_port is None:
        return
    exporter = Exporter(collector, operate.metrics_port, operate.metrics_host)
    opened.callback(exporter.close)
    at = f"http://{operate.metrics_host}:{exporter.port}/metrics"
    run_log.info("metrics", f"metrics at {at}", port=exporter.port)


def make_display(
    config: Config, name: str, console: Console, num_events: int | None, run_log: RunLog
) -> tuple[AbstractContextManager[object], Observer]:
    """Return what shows the micro-batches to people, or logs them now and then for machines."""
    if config.operate.log_format == "json":
        return nullcontext(), ProgressLog(run_log).update
    title = f"{name} learning from {config.stream.path}"
    display = Display(console, title, num_events)
    return display, display.update


def _memory_limit(config: Config) -> int | None:
    limit = config.operate.memory_limit
    return None if limit is None else parse_bytes(limit)
