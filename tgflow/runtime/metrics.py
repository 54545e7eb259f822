"""A run's metrics as they stand, for the exporter and health.json, from any thread.

Each source knows one part of a run; a run without that part has metrics without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tgflow.durable.log import DurableLog
from tgflow.graph import TemporalGraph
from tgflow.runtime.checkpoints import Checkpoints
from tgflow.runtime.gpu import device_figures
from tgflow.runtime.health import STATES, State
from tgflow.runtime.machine import rss_bytes
from tgflow.runtime.runner import RunStatus
from tgflow.runtime.stream import FlowControl
from tgflow.runtime.table_stats import table_figures
from tgflow.streams.ingest.config import AFTER_ALL, BEFORE_ALL
from tgflow.streams.ingest.ingest import Ingest
from tgflow.train.progress import Progress
from tgflow.train.stream_trainer import StreamTrainer
from tgflow.units import seconds_per_tick

UNIX_SINCE = 631_152_000
"""1990: stream times after it are taken for Unix time."""
WAITING_SECONDS = 5.0


class MetricSource(Protocol):
    """A part of a run that has metrics."""

    def health(self) -> Mapping[str, Any]:
        """Return what health.json says of it."""

    def metrics(self) -> Mapping[str, Any]:
        """Return values of `tgflow.runtime.exporter.METRICS` by key; None where there is none."""


class RunMetrics:
    """The metrics of all parts of a run, and its state.

    Args:
        status: How the run stands.
        flow: What pauses and stops it.
        has_work: Whether there is something to learn now.
        sources: The parts that have metrics.
    """

    def __init__(
        self,
        status: RunStatus,
        flow: FlowControl,
        has_work: Callable[[], bool],
        sources: Sequence[MetricSource],
    ) -> None:
        self._status, self._flow, self._has_work = status, flow, has_work
        self._sources = sources
        self._started = time.monotonic()

    @property
    def state(self) -> State:
        """How the run is now."""
        state, flow = self._status.state, self._flow
        if flow.signal and state in ("starting", "recovering", "running"):
            return "stopping"
        if state not in ("running", "recovering"):
            return state
        if flow.paused:
            return "paused"
        if self._has_work():
            return state
        silent = time.monotonic() - self._status.stepped_at
        return "waiting" if silent > WAITING_SECONDS else state

    def health(self) -> dict[str, Any]:
        """Return what health.json says beside the state."""
        now, record = time.monotonic(), self._status.record
        out: dict[str, Any] = {
            "reason": self._status.reason or self._flow.signal,
            "uptime_seconds": now - self._started,
            "seconds_since_step": now - self._status.stepped_at,
            "events_per_second": record.get("events_per_second"),
            "prequential_ap": record.get("prequential.ap"),
        }
        for source in self._sources:
            out |= source.health()
        return out

    def metrics(self) -> dict[str, Any]:
        """Return the values of `tgflow.runtime.exporter.METRICS`; None where there is none."""
        record = self._status.record
        out: dict[str, Any] = {"state": {name: float(name == self.state) for name in STATES}}
        for key in ("events_per_second", "freshness_seconds", "forgetting"):
            out[key] = record.get(key)
        for group in ("prequential", "running"):
            prefix = f"{group}."
            out[group] = {
                k.removeprefix(prefix): v for k, v in record.items() if k.startswith(prefix)
            }
        for source in self._sources:
            out |= source.metrics()
        return out


class IngestMetrics:
    """What became of the rows of a source, and how far ingestion is ahead.

    Args:
        ingest: Ingestion.
        trainer: What learns from it.
    """

    def __init__(self, ingest: Ingest, trainer: StreamTrainer) -> None:
        self._ingest, self._trainer = ingest, trainer

    @property
    def num_waiting(self) -> int:
        """Events in order that are not learned yet."""
        return max(0, self._ingest.num_released - self._trainer.position)

    def health(self) -> dict[str, Any]:
        """Return `stream`."""
        ingest = self._ingest
        found = {
            "num_released": ingest.num_released,
            "num_buffered": ingest.num_buffered,
            "lag": dict(ingest.lag),
        }
        return {"stream": found}

    def metrics(self) -> dict[str, Any]:
        """Return counts by partition, lag, watermark and the source's counters."""
        report = self._ingest.report()
        partitions = report["counts"]["partitions"]
        out: dict[str, Any] = {
            name: {p: counts[name] for p, counts in partitions.items()}
            for name in ("read", "accepted", "duplicate", "forced")
        }
        out["late"] = {p: _rejected(counts, "late") for p, counts in partitions.items()}
        out["tombstone"] = {
            p: counts["other"].get("tombstone", 0) for p, counts in partitions.items()
        }
        out["gaps"] = {p: len(counts["gaps"]) for p, counts in partitions.items()}
        rejected = report["counts"]["refused"]
        out["malformed"] = {code: n for code, n in rejected.items() if code != "late"}
        out["buffered"], out["released"] = report["num_buffered"], report["num_released"]
        out["waiting"] = self.num_waiting
        out["source_lag"] = report["lag"]
        out |= {f"source.{name}": value for name, value in report["counters"].items()}
        return out | self._watermark(report["watermark"])

    def _watermark(self, watermark: int) -> dict[str, float]:
        if not BEFORE_ALL < watermark < AFTER_ALL:
            return {}
        unit = self._ingest.unit
        seconds = watermark * seconds_per_tick(unit)
        if unit == "tick" or seconds <= UNIX_SINCE:
            return {"watermark_seconds": seconds}
        return {"watermark_seconds": seconds, "watermark_age": time.time() - seconds}


class TrainerMetrics:
    """How far a trainer is, and the sizes of its graph, its memory and its tables.

    Args:
        trainer: The trainer.
    """

    def __init__(self, trainer: StreamTrainer) -> None:
        self._trainer = trainer

    def health(self) -> dict[str, Any]:
        """Return `position` and `tables`."""
        trainer = self._trainer
        return {"position": trainer.position, "tables": table_figures(trainer.graph)}

    def metrics(self) -> dict[str, Any]:
        """Return counts, and the sizes of what is stored."""
        trainer = self._trainer
        return {
            "position": trainer.position,
            "num_skipped": trainer.progress.num_skipped,
            "num_nodes": trainer.graph.num_nodes,
            "memory_rows": trainer.memory_rows,
            "busy": _busy(trainer.progress),
            **device_figures(trainer.device),
            **_store(trainer.graph),
            **_edge_features(trainer.graph),
        }


class CheckpointMetrics:
    """What checkpoints, the log and dead letters are on the disk.

    Args:
        checkpoints: The checkpoints.
        log: The log, if there is one.
        dead_letters: The directory of dead letters.
    """

    def __init__(
        self, checkpoints: Checkpoints, log: DurableLog | None, dead_letters: Path
    ) -> None:
        self._checkpoints, self._log, self._dead_letters = checkpoints, log, dead_letters

    def health(self) -> dict[str, Any]:
        """Return `checkpoint`."""
        stats = self._checkpoints.stats
        found = {
            "position": stats.last_step,
            "age_seconds": self._checkpoints.age,
            "bytes": stats.num_bytes,
            "failures": stats.failures,
            "last_error": stats.last_error,
        }
        return {"checkpoint": found}

    def metrics(self) -> dict[str, Any]:
        """Return sizes, times and failures."""
        stats = self._checkpoints.stats
        out: dict[str, Any] = {
            "checkpoint.written": stats.saved,
            "checkpoint.failures": stats.failures,
            "checkpoint.age": self._checkpoints.age,
            "log_bytes": None if self._log is None else self._log.num_bytes,
        }
        if stats.last_step is not None:
            out["checkpoint.position"] = stats.last_step
            out["checkpoint.bytes"] = stats.num_bytes
            out["checkpoint.seconds"] = stats.seconds
            out["checkpoint.copy_seconds"] = self._checkpoints.copy_seconds
        sizes = (file.stat().st_size for file in self._dead_letters.glob("*.jsonl"))
        return out | {"dead_letter_bytes": sum(sizes)}


class ProcessMetrics:
    """The memory of the process, and how long its limit paused the stream.

    Args:
        flow: What pauses the stream.
        memory_limit: Bytes that the process may hold; None: any.
    """

    def __init__(self, flow: FlowControl, memory_limit: int | None) -> None:
        self._flow, self._memory_limit = flow, memory_limit

    def health(self) -> dict[str, Any]:
        """Return `rss_bytes` and `memory_limit`."""
        return {"rss_bytes": rss_bytes(), "memory_limit": self._memory_limit}

    def metrics(self) -> dict[str, Any]:
        """Return the limit and the time paused."""
        return {"memory_limit": self._memory_limit, "paused_seconds": self._flow.paused_seconds}


def _busy(progress: Progress) -> dict[str, float]:
    """Return the share of the run in which each stream was busy."""
    busy = {"training": 1 - progress.overhead_share()}
    preparation = progress.preparation_share()
    return busy if preparation is None else busy | {"preparation": preparation}


def _store(graph: TemporalGraph) -> dict[str, Any]:
    stats = graph.stats()
    return {
        "store.entries": stats.num_entries,
        "store.bytes": stats.bytes,
        "store.tier_bytes": {tier.name: tier.bytes for tier in stats.tiers},
        "store.blocks": stats.num_blocks,
        "store.slack": stats.slack,
        "store.hit_rate": {tier.name: tier.hit_rate for tier in stats.tiers},
    }


def _edge_features(graph: TemporalGraph) -> dict[str, Any]:
    found = table_figures(graph).get("edge_x")
    if found is None:
        return {}
    out: dict[str, Any] = {"edge.rows": {found.get("placement", "host"): found["rows"]}}
    out["edge.bytes"] = found.get("memory_bytes")
    return out | {f"edge_cache.{name}": x for name, x in found.get("cache", {}).items()}


def _rejected(counts: Mapping[str, Any], code: str) -> int:
    return int(counts["refused"].get(code, {"count": 0})["count"])
