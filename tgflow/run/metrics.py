"""Metrics of a run, health.json and the Prometheus exporter."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import inf
from operator import itemgetter
from typing import Any, Literal

import numpy as np

from tgflow.base.extras import install_command
from tgflow.base.units import seconds_per_tick
from tgflow.graph import TemporalGraph
from tgflow.report.label_figures import class_of
from tgflow.run.checkpoints import Checkpoints
from tgflow.run.context import RunContext
from tgflow.run.features import table_figures
from tgflow.run.gpu import device_figures
from tgflow.run.machine import anonymous_bytes, rss_bytes
from tgflow.run.outlook import Outlook
from tgflow.run.records import DEAD_LETTERS, STATES, State
from tgflow.run.runner import RunStatus
from tgflow.serve.endpoint import Endpoint, Hosts
from tgflow.streams.ingest.config import AFTER_ALL, BEFORE_ALL
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.ingest.late_labels import COUNTS
from tgflow.train.stream_trainer import StreamTrainer


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: its Prometheus name without `tgflow_`, and the key of its value."""

    kind: Literal["counter", "gauge"]
    name: str
    help: str
    key: str
    label: str | None = None

    @property
    def exported(self) -> str:
        return f"tgflow_{self.name}" + "_total" * (self.kind == "counter")


_gauge, _counter = partial(Metric, "gauge"), partial(Metric, "counter")

METRICS = (
    _gauge("state", "1 for the current state of the run.", "state", "state"),
    _counter("events_read", "Rows read from the source.", "read", "partition"),
    _counter("events_accepted", "Accepted rows.", "accepted", "partition"),
    _counter("events_late", "Late events.", "late", "partition"),
    _counter("events_duplicate", "Duplicate rows.", "duplicate", "partition"),
    _counter("events_tombstone", "Records without a value.", "tombstone", "partition"),
    _counter("events_malformed", "Invalid rows.", "malformed", "code"),
    _counter("watermarks_forced", "Watermarks forced by a full buffer.", "forced", "partition"),
    _counter("source_gaps", "Ranges of the source that were lost.", "gaps", "partition"),
    _counter("labels", "Labels that came after their events.", "labels", "outcome"),
    _gauge("labels_waiting", "Labels whose events have not come.", "labels_waiting"),
    _gauge("labels_delay_seconds", "Median time from event to label.", "labels_delay"),
    _gauge("events_buffered", "Events in the reorder buffer.", "buffered"),
    _counter("events_released", "Events released in order.", "released"),
    _counter("events_learned", "Events predicted, learned and stored.", "position"),
    _gauge("events_waiting", "Events released, not yet learned.", "waiting"),
    _gauge("events_per_second", "Events learned per second since the start.", "events_per_second"),
    _gauge("freshness_seconds", "Time from arrival until learned.", "freshness_seconds"),
    _gauge("watermark_seconds", "Time up to which events are complete.", "watermark_seconds"),
    _gauge("watermark_age_seconds", "Delay behind the clock, for Unix times.", "watermark_age"),
    _gauge("source_lag_records", "Records of the source not read yet.", "source_lag", "partition"),
    _counter("source_rebuilds", "Consumers rebuilt.", "source.rebuilds"),
    _counter("source_outage_seconds", "Time the source was unreachable.", "source.outage_seconds"),
    _counter("source_paused_seconds", "Time a partition was paused.", "source.paused_seconds"),
    _gauge("prequential", "Mean over all events, prequential.", "prequential", "metric"),
    _gauge("running", "Mean over recent micro-batches.", "running", "metric"),
    _gauge("forgetting", "Drop of AP on replayed events from its peak.", "forgetting"),
    _counter("checkpoints", "Checkpoints written.", "checkpoint.written"),
    _counter("checkpoint_failures", "Checkpoints that failed.", "checkpoint.failures"),
    _gauge("checkpoint_age_seconds", "Age of the latest checkpoint.", "checkpoint.age"),
    _gauge("checkpoint_bytes", "Size of the latest checkpoint.", "checkpoint.bytes"),
    _gauge("checkpoint_write_seconds", "Time to write the latest one.", "checkpoint.seconds"),
    _gauge("checkpoint_copy_seconds", "Time it blocked training.", "checkpoint.copy_seconds"),
    _gauge("checkpoint_position", "Checkpointed events.", "checkpoint.position"),
    _gauge("log_bytes", "Size of the event log.", "log_bytes"),
    _gauge("dead_letter_bytes", "Size of the dead letters.", "dead_letter_bytes"),
    _gauge("nodes", "Nodes seen.", "num_nodes"),
    _gauge("nodes_kept", "Nodes seen whose memory was not freed.", "nodes.kept"),
    _gauge("nodes_forgotten", "Nodes whose memory was freed.", "nodes.forgotten"),
    _gauge("store_entries", "Neighbors in the block store.", "store.entries"),
    _gauge("store_bytes", "Memory of the block store.", "store.bytes"),
    _gauge("store_tier_bytes", "Memory of it, by tier.", "store.tier_bytes", "tier"),
    _gauge("store_blocks", "Blocks in use.", "store.blocks"),
    _gauge("store_unused_ratio", "Share of the blocks' capacity unused.", "store.slack"),
    _gauge("store_hit_ratio", "Share of samples found in each.", "store.hit_rate", "tier"),
    _gauge("memory_rows", "Rows of node memory, past versions included.", "memory_rows"),
    _gauge("edge_rows", "Rows of edge features, by placement.", "edge.rows", "placement"),
    _gauge("edge_memory_bytes", "Memory of edge features without cache.", "edge.bytes"),
    _counter("edge_cache_hits", "Rows read from the cache.", "edge_cache.hits"),
    _counter("edge_cache_misses", "Rows read from the table on a miss.", "edge_cache.misses"),
    _counter("edge_cache_read_bytes", "Bytes read from the table.", "edge_cache.bytes_from_table"),
    _gauge("edge_cache_bytes", "Memory of the cache.", "edge_cache.memory_bytes"),
    _gauge("busy_ratio", "Share of the run in which a worker was busy.", "busy", "stream"),
    _gauge("gpu_memory_bytes", "GPU memory of tensors.", "gpu_bytes"),
    _gauge("gpu_memory_peak_bytes", "Peak of tensor memory.", "gpu_peak_bytes"),
    _counter("rank_compute_seconds", "Forward, backward, update.", "rank.compute_seconds", "rank"),
    _counter("rank_wait_seconds", "Time a rank waited for others.", "rank.wait_seconds", "rank"),
    _gauge("rank_memory_bytes", "Memory of a rank's process.", "rank.memory_bytes", "rank"),
    _counter("rank_sent_bytes", "Bytes sent by a rank.", "rank.sent_bytes", "rank"),
    _counter("sent_bytes", "Bytes sent between ranks, by kind.", "sent_bytes", "kind"),
    _gauge("memory_limit_bytes", "Memory limit of the process.", "memory_limit"),
    _gauge("memory_part_bytes", "Memory of the process, by part.", "memory", "part"),
    _gauge("seconds_left", "Time until it ends at this growth.", "seconds_left", "resource"),
    _counter("paused_seconds", "Time paused for lack of memory.", "paused_seconds"),
)  # fmt: skip


class RunCollector:
    """Collector of `METRICS` for prometheus-client, from the values by key that `metrics` returns.

    With `Config.label_facts` as `facts`, figures of the positive label have the label `class`.
    """

    def __init__(
        self,
        metrics: Callable[[], Mapping[str, Any]],
        labels: Mapping[str, str],
        facts: Mapping[str, str],
    ) -> None:
        self._metrics, self._labels, self._facts = metrics, labels, facts

    def describe(self) -> list[Any]:
        """Return nothing, as the metrics depend on the run, which registration must not query."""
        return []

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        yield InfoMetricFamily("tgflow_run", "The run.", dict(self._labels))
        values = self._metrics()
        for metric in METRICS:
            if (value := values.get(metric.key)) is None:
                continue
            has_class = metric.label == "metric" and "label_positive" in self._facts
            labels = [] if metric.label is None else [metric.label]
            names = [*labels, "class"] if has_class else labels
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(f"tgflow_{metric.name}", metric.help, labels=names)
            for label, number in value.items() if labels else [("", value)]:
                own = [str(label)] if labels else []
                own += [class_of(str(label), self._facts) or ""] if has_class else []
                family.add_metric(own, float(number))
            yield family

    def registry(self) -> Any:
        import prometheus_client as prometheus

        registry = prometheus.CollectorRegistry()
        registry.register(self)
        prometheus.ProcessCollector(registry=registry)
        return registry


def open_exporter(
    collector: RunCollector, at: Endpoint, hosts: Sequence[str], opened: ExitStack
) -> int:
    """Serve `METRICS` over HTTP until `opened` is closed; returns the port."""
    try:
        import prometheus_client as prometheus
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"--metrics-port needs prometheus-client; {install_command('metrics')}"
        ) from None
    server, thread = prometheus.start_http_server(at.port, at.host, collector.registry())
    accepted = Hosts(at._replace(port=server.server_port), hosts)
    answer: Any = server.get_app()

    def app(environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        headers = ([environ[key]] if key in environ else [] for key in ("HTTP_HOST", "HTTP_ORIGIN"))
        if why := accepted.refusal(*headers):
            start("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
            return [why.encode()]
        return answer(environ, start)

    server.set_app(app)
    opened.callback(thread.join, timeout=2)
    opened.callback(server.server_close)
    opened.callback(server.shutdown)
    return int(server.server_port)


KINDS = {"gradient": "gradient", "rows": "rows", "queries": "query", "other": "other"}
"""Kinds of messages between ranks, and their names in `RankFigures`."""
_OF_RANK = ("compute_seconds", "wait_seconds", "memory_bytes", "free_bytes")


def rank_report(run: RunContext) -> dict[str, Any]:
    """Return `ranks`: the figures by rank; empty for a single process."""
    control = run.trainer.control
    if run.peers.world == 1 or control is None:
        return {}
    return {
        "ranks": {
            str(rank): {
                **{name: getattr(figures, name) for name in _OF_RANK},
                "sent_bytes": {kind: getattr(figures, f"{x}_bytes") for kind, x in KINDS.items()},
            }
            for rank, figures in enumerate(control.figures)
        }
    }


UNIX_SINCE = 631_152_000
"""1990: later stream times are taken for Unix time."""
WAITING_SECONDS = 5.0


def lag_figures(ingest: Ingest, trainer: StreamTrainer) -> dict[str, float]:
    """Return how far learning is behind a topic: events, and time since the latest one learned.

    The time is 0 if no event waits, and absent if times are not Unix times. Files have no lag.
    """
    if not ingest.lag:
        return {}
    waiting = max(0, ingest.num_released - trainer.position) + ingest.num_buffered
    unread = sum(ingest.source.lag().values())  # `ingest.lag` is of up to a second ago
    found: dict[str, float] = {"lag_events": unread + waiting}
    last, unit = trainer.graph.log.t_last, ingest.unit
    if unit != "tick" and last is not None and (t := last * seconds_per_tick(unit)) > UNIX_SINCE:
        found["lag_seconds"] = max(0.0, time.time() - t) if found["lag_events"] else 0.0
    return found


MOST_LABELS = 1_000
"""Latest labels whose delay is measured."""


def label_delays(graph: TemporalGraph, most: int | None = None) -> dict[str, float]:
    """Return the median and the 90th percentile of seconds from events to their late labels.

    Those of the latest `most` labels; None: of all within the horizon.
    """
    late, since = graph.log.late, graph.since(graph.num_events)
    first = late.kept(since).first
    found = late.read(first if most is None else max(first, len(late) - most), len(late))
    is_held = found["eid"] >= since
    eid, t = found["eid"][is_held], found["t"][is_held]
    if not len(eid):
        return {}
    ticks = np.quantile((t - graph.log.gather(eid).t).numpy(), (0.5, 0.9))
    seconds = (ticks * seconds_per_tick(graph.time_unit)).tolist()
    return dict(zip(("p50", "p90"), seconds, strict=True))


class RunMetrics:
    """State, health and metrics of a run."""

    def __init__(
        self, run: RunContext, status: RunStatus, checkpoints: Checkpoints, outlook: Outlook
    ) -> None:
        self._run, self._status, self._checkpoints = run, status, checkpoints
        self._flow, self._trainer, self._ingest = run.flow, run.trainer, run.ingest
        self._memory_limit, self._started = run.config.operate.memory_bytes, time.monotonic()
        self.outlook = outlook

    @property
    def num_waiting(self) -> int:
        return max(0, self._ingest.num_released - self._trainer.position)

    @property
    def state(self) -> State:
        state, flow = self._status.state, self._flow
        if flow.signal and state in ("starting", "recovering", "running"):
            return "stopping"
        if state not in ("running", "recovering"):
            return state
        if flow.paused:
            return "paused"
        silent = time.monotonic() - self._status.stepped_at
        if self.num_waiting < self._trainer.config.batch_size and silent > WAITING_SECONDS:
            return "waiting"
        return state

    def health(self) -> dict[str, Any]:
        """Return the contents of health.json except the state."""
        now, record, stats = time.monotonic(), self._status.record, self._checkpoints.stats
        prequential = {"ap": None} | ({} if record is None else record.prequential)
        return {
            "reason": self._status.reason or self._flow.signal,
            "uptime_seconds": now - self._started,
            "seconds_since_step": now - self._status.stepped_at,
            "events_per_second": None if record is None else record.events_per_second,
            **{f"prequential_{k}": v for k, v in prequential.items() if k.isidentifier()},
            "position": self._trainer.position,
            "nodes": self._nodes(),
            "tables": table_figures(self._trainer.graph),
            "checkpoint": {
                "position": stats.last_step,
                "age_seconds": self._checkpoints.age,
                "bytes": stats.num_bytes,
                "failures": stats.failures,
                "last_error": stats.last_error,
            },
            "stream": {
                "num_released": self._ingest.num_released,
                "num_buffered": self._ingest.num_buffered,
                "lag": dict(self._ingest.lag),
                **lag_figures(self._ingest, self._trainer),
                "waits_for_seconds": self._ingest.waits(),
            },
            **self._labels(),
            "rss_bytes": rss_bytes(),
            "memory": self.memory(),
            "outlook": self.outlook.found,
            "memory_limit": self._memory_limit,
            **rank_report(self._run),
        }

    def warnings(self) -> list[str]:
        """Return a line for each resource that ends within a day; see `Outlook.look`."""
        total, share = self._run.stream.num_events, self._run.stream.share(self._trainer.position)
        num_left = inf if total is None or share is None else (1 - share) * total
        return self.outlook.look(self._trainer.position, num_left)

    def _nodes(self) -> dict[str, int]:
        forgotten = self._trainer.num_forgotten
        return {"kept": self._trainer.graph.num_nodes - forgotten, "forgotten": forgotten}

    def memory(self) -> dict[str, int]:
        """Return the anonymous memory of the process by part, largest first."""
        parts = self._trainer.memory_parts()
        parts["other"] = max(0, anonymous_bytes() - sum(parts.values()))
        return dict(sorted(parts.items(), key=itemgetter(1), reverse=True))

    def metrics(self) -> dict[str, Any]:
        """Return the values of `METRICS` by key; None if there is none."""
        record, trainer, stats = self._status.record, self._trainer, self._checkpoints.stats
        store, progress = trainer.graph.stats(), trainer.progress
        edges: dict[str, Any] = table_figures(trainer.graph).get("edge_x", {})
        out: dict[str, Any] = {
            "state": {name: float(name == self.state) for name in STATES},
            **({} if record is None else {key: getattr(record, key) for key in _RECORDED}),
            "position": trainer.position,
            "num_nodes": trainer.graph.num_nodes,
            **{f"nodes.{name}": num for name, num in self._nodes().items()},
            "memory_rows": trainer.memory_rows,
            **device_figures(trainer.device),
            "busy": {"training": 1 - progress.overhead_share()},
            "store.entries": store.num_entries,
            "store.bytes": store.bytes,
            "store.tier_bytes": {tier.name: tier.bytes for tier in store.tiers},
            "store.blocks": store.num_blocks,
            "store.slack": store.slack,
            "store.hit_rate": {tier.name: tier.hit_rate for tier in store.tiers},
            "edge.bytes": edges.get("memory_bytes"),
            **{f"edge_cache.{name}": x for name, x in edges.get("cache", {}).items()},
            "checkpoint.written": stats.saved,
            "checkpoint.failures": stats.failures,
            "checkpoint.age": self._checkpoints.age,
            "log_bytes": None if (log := self._run.log) is None else log.num_bytes,
            "dead_letter_bytes": sum(
                file.stat().st_size for file in (self._run.path / DEAD_LETTERS).glob("*.jsonl")
            ),
            "memory_limit": self._memory_limit,
            "memory": self.memory(),
            "seconds_left": {
                name: found["seconds_left"]
                for name, found in self.outlook.found.copy().items()
                if "seconds_left" in found
            },
            "paused_seconds": self._flow.paused_seconds,
            **self._rows(),
        }
        if edges:
            out["edge.rows"] = {edges.get("placement", "host"): edges["rows"]}
        if stats.last_step is not None:
            out["checkpoint.position"] = stats.last_step
            out["checkpoint.bytes"] = stats.num_bytes
            out["checkpoint.seconds"] = stats.seconds
            out["checkpoint.copy_seconds"] = self._checkpoints.copy_seconds
        if ranks := rank_report(self._run).get("ranks"):
            sent = {rank: each["sent_bytes"] for rank, each in ranks.items()}
            for name in _OF_RANK:
                out[f"rank.{name}"] = {rank: each[name] for rank, each in ranks.items()}
            out["rank.sent_bytes"] = {rank: sum(by.values()) for rank, by in sent.items()}
            out["sent_bytes"] = {kind: sum(by[kind] for by in sent.values()) for kind in KINDS}
        return out

    def _labels(self) -> dict[str, Any]:
        if (labels := self._ingest.labels) is None:
            return {}
        counts = {**labels.counts, "waiting": labels.num_waiting}
        return {"labels": counts | label_delays(self._trainer.graph, MOST_LABELS)}

    def _rows(self) -> dict[str, Any]:
        report = self._ingest.report()
        counts = report["counts"]
        partitions, refused = counts["partitions"], counts["refused"]
        by_partition: dict[str, Callable[[Mapping[str, Any]], int]] = {
            "late": lambda of: int(of["refused"].get("late", {"count": 0})["count"]),
            "tombstone": lambda of: int(of["other"].get("tombstone", 0)),
            "gaps": lambda of: len(of["gaps"]),
            **{name: itemgetter(name) for name in ("read", "accepted", "duplicate", "forced")},
        }
        out: dict[str, Any] = {
            **{
                name: {p: count(of) for p, of in partitions.items()}
                for name, count in by_partition.items()
            },
            "malformed": {code: n for code, n in refused.items() if code != "late"},
            "buffered": report["num_buffered"],
            "released": report["num_released"],
            "waiting": self.num_waiting,
            "source_lag": report["lag"],
            **{f"source.{name}": value for name, value in report["counters"].items()},
        }
        if labels := self._labels().get("labels"):
            out["labels"] = {name: labels[name] for name in COUNTS}
            out |= {"labels_waiting": labels["waiting"], "labels_delay": labels.get("p50")}
        if BEFORE_ALL < (watermark := report["watermark"]) < AFTER_ALL:
            unit = self._ingest.unit
            out["watermark_seconds"] = seconds = watermark * seconds_per_tick(unit)
            if unit != "tick" and seconds > UNIX_SINCE:
                out["watermark_age"] = time.time() - seconds
        return out


_RECORDED = ("events_per_second", "freshness_seconds", "forgetting", "prequential", "running")
