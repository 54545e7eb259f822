"""A run's figures as they stand, for metrics, health and whoever else asks, from any thread."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tgflow.runtime.build import Session
from tgflow.runtime.checkpoints import CheckpointScheduler
from tgflow.runtime.health import STATES, State
from tgflow.runtime.machine import rss_bytes
from tgflow.runtime.table_stats import table_figures
from tgflow.streams.ingest.config import AFTER_ALL, BEFORE_ALL
from tgflow.units import parse_bytes, seconds_per_tick

UNIX_SINCE = 631_152_000
"""1990: stream times after it are taken for Unix time."""
WAITING_SECONDS = 5.0


@dataclass(slots=True)
class Status:
    """What the loop tells of itself."""

    state: State = "starting"
    record: Mapping[str, Any] = field(default_factory=dict)
    """The latest micro-batch's."""
    stepped_at: float = field(default_factory=time.monotonic)
    reason: str | None = None
    """Why it ends."""


class RunMetrics:
    """Reads the figures of a session.

    Args:
        session: The run.
        keeper: Its checkpoints.
        status: What the loop tells.
    """

    def __init__(self, session: Session, keeper: CheckpointScheduler, status: Status) -> None:
        self._session, self._keeper, self._status = session, keeper, status
        self._started = time.monotonic()
        limit = session.config.operate.memory_limit
        self._memory_limit = None if limit is None else parse_bytes(limit)

    @property
    def state(self) -> State:
        """How the run is now."""
        status = self._status
        session = self._session
        if session.valve.asked_by and status.state in ("starting", "recovering", "running"):
            return "stopping"
        if status.state not in ("running", "recovering"):
            return status.state
        if session.valve.held:
            return "paused"
        waits = session.ingest.num_released - session.trainer.position
        if waits >= session.config.continual.batch_size:  # there is something to learn
            return status.state
        silent = time.monotonic() - status.stepped_at
        return "waiting" if silent > WAITING_SECONDS else status.state

    def health(self) -> dict[str, Any]:
        """Return what health.json says beside the state."""
        session, record = self._session, self._status.record
        stats = session.writer.stats
        return {
            "reason": self._status.reason or session.valve.asked_by,
            "position": session.trainer.position,
            "uptime_seconds": time.monotonic() - self._started,
            "seconds_since_step": time.monotonic() - self._status.stepped_at,
            "events_per_second": record.get("events_per_second"),
            "prequential_ap": record.get("prequential.ap"),
            "checkpoint": {
                "position": stats.last_step,
                "age_seconds": self._checkpoint_age(),
                "bytes": stats.num_bytes,
                "failures": stats.failures,
                "last_error": stats.last_error,
            },
            "stream": {
                "num_released": session.ingest.num_released,
                "num_buffered": session.ingest.num_buffered,
                "lag": dict(session.ingest.lag),
            },
            "tables": table_figures(session.trainer.graph),
            "rss_bytes": rss_bytes(),
            "memory_limit": self._memory_limit,
        }

    def metrics(self) -> dict[str, Any]:
        """Return the values of `tgflow.runtime.exporter.METRICS`; None where there is none."""
        out: dict[str, Any] = {"state": {name: float(name == self.state) for name in STATES}}
        out |= self._stream() | self._training() | self._checkpoints() | self._store()
        out |= self._tables()
        out["memory_limit"] = self._memory_limit
        out["paused_seconds"] = self._session.valve.held_seconds
        return out

    def _stream(self) -> dict[str, Any]:
        session = self._session
        report = session.ingest.report()
        partitions = report["counts"]["partitions"]
        out: dict[str, Any] = {
            name: {p: counts[name] for p, counts in partitions.items()}
            for name in ("read", "accepted", "duplicate", "forced")
        }
        out["late"] = {p: _refused(counts, "late") for p, counts in partitions.items()}
        out["tombstone"] = {
            p: counts["other"].get("tombstone", 0) for p, counts in partitions.items()
        }
        out["gaps"] = {p: len(counts["gaps"]) for p, counts in partitions.items()}
        refused = report["counts"]["refused"]
        out["malformed"] = {code: n for code, n in refused.items() if code != "late"}
        out["buffered"], out["released"] = report["num_buffered"], report["num_released"]
        out["source_lag"] = report["lag"]
        out |= {f"source.{name}": value for name, value in report["counters"].items()}
        watermark = report["watermark"]
        if BEFORE_ALL < watermark < AFTER_ALL:
            seconds = watermark * seconds_per_tick(session.ingest.unit)
            out["watermark_seconds"] = seconds
            if session.ingest.unit != "tick" and seconds > UNIX_SINCE:
                out["watermark_age"] = time.time() - seconds
        return out

    def _training(self) -> dict[str, Any]:
        session, record = self._session, self._status.record
        out: dict[str, Any] = {
            "position": session.trainer.position,
            "waiting": max(0, session.ingest.num_released - session.trainer.position),
            "num_skipped": session.trainer.progress.num_skipped,
            "num_nodes": session.trainer.graph.num_nodes,
        }
        for key in ("events_per_second", "freshness_seconds", "forgetting"):
            out[key] = record.get(key)
        for group in ("prequential", "running"):
            prefix = f"{group}."
            out[group] = {
                k.removeprefix(prefix): v for k, v in record.items() if k.startswith(prefix)
            }
        return out

    def _checkpoints(self) -> dict[str, Any]:
        stats = self._session.writer.stats
        out: dict[str, Any] = {
            "checkpoint.written": stats.saved,
            "checkpoint.failures": stats.failures,
            "checkpoint.age": self._checkpoint_age(),
        }
        if stats.last_step is not None:
            out["checkpoint.position"] = stats.last_step
            out["checkpoint.bytes"] = stats.num_bytes
            out["checkpoint.seconds"] = stats.seconds
            out["checkpoint.copy_seconds"] = self._keeper.copy_seconds
        if self._session.log is not None:
            out["log_bytes"] = self._session.log.num_bytes
        letters = self._session.place.path / "dead-letters"
        out["dead_letter_bytes"] = sum(file.stat().st_size for file in letters.glob("*.jsonl"))
        return out

    def _store(self) -> dict[str, Any]:
        stats = self._session.trainer.graph.stats()
        return {
            "store.entries": stats.num_entries,
            "store.bytes": stats.bytes,
            "store.blocks": stats.num_blocks,
            "store.slack": stats.slack,
            "store.hit_rate": {tier.name: tier.hit_rate for tier in stats.tiers},
            "memory_rows": getattr(self._session.trainer.model.state, "num_rows", None),
        }

    def _tables(self) -> dict[str, Any]:
        found = table_figures(self._session.trainer.graph).get("edge_x")
        if found is None:
            return {}
        out: dict[str, Any] = {"edge.rows": {found.get("placement", "host"): found["rows"]}}
        out["edge.bytes"] = found.get("memory_bytes")
        return out | {f"edge_cache.{name}": x for name, x in found.get("cache", {}).items()}

    def _checkpoint_age(self) -> float | None:
        """Return for how long a crash would set the run back; None before the first checkpoint."""
        saved_at = self._keeper.saved_at
        return None if saved_at is None else time.monotonic() - saved_at


def _refused(counts: Mapping[str, Any], code: str) -> int:
    return int(counts["refused"].get(code, {"count": 0})["count"])
