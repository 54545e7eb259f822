"""Prometheus metrics, and the dashboard that shows them."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

import pytest

from tgflow.run.metrics import METRICS, RunCollector, open_exporter
from tgflow.run.replica import _observe
from tgflow.serve.endpoint import Endpoint

prometheus = pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
PROCESS = {
    "process_resident_memory_bytes",
    "process_virtual_memory_bytes",
    "process_cpu_seconds_total",
    "process_open_fds",
    "process_max_fds",
    "process_start_time_seconds",
}
DASHBOARD = Path(__file__).resolve().parents[2] / "examples" / "grafana" / "tgflow.json"


def scrape(port, **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=5) as answer:
        return answer.read().decode()


def page_of(figures, labels, facts=MappingProxyType({})):
    with ExitStack() as opened:
        at = Endpoint("127.0.0.1", 0)
        port = open_exporter(RunCollector(lambda: figures, labels, facts), at, ["run"], opened)
        page = scrape(port)
        assert scrape(port, Host="run:9400")
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                scrape(port, **headers)
    with pytest.raises(urllib.error.URLError):
        scrape(port)
    return page


def test_figures_of_the_positive_label_name_it():
    figures = {"running": {"ap": 1, "edge.ap": 2, "edge.accuracy": 3, "edge.pair_last.auc_low": 4}}
    exported = page_of(figures, {}, {"label_target": "kind", "label_positive": "fraud"})
    assert re.findall(r"^tgflow_running(.*) \d\.0$", exported, re.M) == [
        '{class="",metric="ap"}',
        '{class="fraud",metric="edge.ap"}',
        '{class="",metric="edge.accuracy"}',
        '{class="fraud",metric="edge.pair_last.auc_low"}',
    ]


def test_every_metric_is_exported_under_its_name():
    """Metrics of a run with all metrics."""
    figures = {m.key: 3.5 if m.label is None else {'a\n"b': 1, 2: 2} for m in METRICS}
    exported = page_of(figures, {"model": "tgn"})
    for metric in METRICS:
        assert re.search(rf"^{metric.exported}(\{{.*\}})? ", exported, re.M), metric.name
        assert f"# HELP {metric.exported} " in exported or f"HELP tgflow_{metric.name} " in exported
    assert 'tgflow_run_info{model="tgn"} 1.0' in exported
    assert r'{partition="a\n\"b"} 1.0' in exported, "labels are escaped"
    assert 'tgflow_rank_wait_seconds_total{rank="2"} 2.0' in exported
    assert "process_resident_memory_bytes" in exported


def test_unknown_metrics_are_omitted():
    page = page_of({"position": 12, "source_lag": {}}, {})
    assert "tgflow_events_learned_total 12.0" in page
    assert "tgflow_checkpoint_age_seconds" not in page


def expressions(panel):
    return [target["expr"] for target in panel.get("targets", [])]


def test_dashboard_uses_only_exported_metrics():
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    registry = prometheus.CollectorRegistry()
    with pytest.raises(AttributeError, match="health"):  # once its gauges are registered
        _observe(registry, None, None)
    own = {metric.exported for metric in METRICS} | {each.name for each in registry.collect()}
    known = own | {"tgflow_run_info", "up", *PROCESS}
    shown = {
        name
        for panel in board["panels"]
        for expression in expressions(panel)
        for name in re.findall(r"\b(?:tgflow|process)_[a-z_]+", expression)
    }
    assert shown - known == set()
    assert own - shown == set(), "every metric has its place"
