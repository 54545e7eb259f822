"""Tables and caches from the command line: the same results wherever rows are."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from helpers.live_runs import SMALL, figures, write_features
from helpers.records import untimed
from tgflow.checkpoint import read_manifest
from tgflow.runtime import runner

FEATURES = ("--features", "f*")


@pytest.fixture
def stream(tmp_path):
    """Return a file of 300 events with two features."""
    return write_features(tmp_path / "made.csv", 300)


def trained(tgflow, stream, out, *flags):
    """Train, and return what the clock does not decide, and what is said of the table."""
    ran = tgflow(
        "train", "-s", stream, "-o", out, *FEATURES, "--epochs", 2, "--mrr-negatives", 3,
        "--json", *SMALL, *flags,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    metrics = untimed({k: v for k, v in ran.json.items() if k != "tables"})
    return [metrics, [untimed(record) for record in records]], ran.json["tables"]["edge_x"]


def test_training_from_disk_through_a_planned_cache_changes_no_bit(tgflow, stream, tmp_path):
    expected, in_memory = trained(tgflow, stream, tmp_path / "plain")
    assert (in_memory["placement"], in_memory["rows"]) == ("host", 300)
    for number, flags in enumerate(
        [("10%", "--cache-policy", "belady"), ("10%",), ("4KiB", "--cache-policy", "lru")]
    ):
        out = tmp_path / f"disk-{number}"
        found, table = trained(tgflow, stream, out, "--edge-table", "disk", "--edge-cache", *flags)
        assert found == expected
        assert table["placement"] == "disk"
        assert Path(table["file"]).parent == out
        cache = table["cache"]
        assert cache["policy"] == ("lru" if number == 2 else "belady")
        assert number == 2 or cache["capacity"] == 30
        assert cache["hits"] > 0
        assert (read_manifest(out / "checkpoint")["files"].keys()) >= {"edge_x_mark.safetensors"}


def test_learning_from_disk_through_a_cache_changes_no_bit(tgflow, stream, tmp_path):
    run = ("run", "-s", stream, *FEATURES, *SMALL)
    assert tgflow(*run, "-o", "plain").code == 0
    ran = tgflow(*run, "-o", "disk", "--edge-table", "disk", "--edge-cache", "4KiB")
    assert ran.code == 0, ran.err
    assert "edge features: 300 rows (2.4 kB) on disk, " in ran.out
    assert "% read from a cache of " in ran.out
    assert figures(tmp_path / "plain")[1:] == figures(tmp_path / "disk")[1:]
    records = [
        json.loads(line) for line in (tmp_path / "disk/metrics.jsonl").read_text().splitlines()
    ]
    assert any(0 < record.get("edge_x.hit_rate", 0) <= 1 for record in records)
    page = (tmp_path / "disk" / "report.html").read_text()
    assert "Read from the cache" in page
    assert "Cache hits" in page
    assert "Cache hits" not in (tmp_path / "plain" / "report.html").read_text()
    told = tgflow("info", "disk")
    assert "edge features" in told.out
    assert "300 rows (2.4 kB) on disk" in told.out


def test_metrics_and_health_tell_of_the_table_and_its_cache(tgflow, stream, monkeypatch):
    pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
    pages = []
    record = runner.Runner._record

    def recording(self, step):
        record(self, step)
        [port] = [
            entry["port"]
            for line in Path("out/run.log").read_text().splitlines()
            if "port" in (entry := json.loads(line))
        ]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            pages.append(page.read().decode())

    monkeypatch.setattr(runner.Runner, "_record", recording)
    disk = ("--edge-table", "disk", "--edge-cache", "4KiB", "--metrics-port", 0)
    assert tgflow("run", "-s", stream, "-o", "out", *FEATURES, *SMALL, *disk).code == 0
    figures = dict(line.rsplit(" ", 1) for line in pages[-1].splitlines() if line[0] != "#")
    assert float(figures['tgflow_edge_rows{placement="disk"}']) == 300
    for name in ("cache_hits_total", "cache_misses_total", "cache_bytes", "memory_bytes"):
        assert float(figures[f"tgflow_edge_{name}"]) > 0
    read = float(figures["tgflow_edge_cache_read_bytes_total"])
    assert read == 8 * float(figures["tgflow_edge_cache_misses_total"])
    health = json.loads(Path("out/health.json").read_text())
    assert health["tables"]["edge_x"]["cache"]["hits"] > 0


@pytest.mark.parametrize("placement", ["auto", "disk", "host"])
def test_a_table_can_be_anywhere(tgflow, stream, placement):
    budget = ("--edge-budget", "1KiB") if placement == "auto" else ()
    ran = tgflow(
        "run",
        "-s",
        stream,
        "-o",
        "out",
        "--edge-table",
        placement,
        *budget,
        *FEATURES,
        *SMALL,
        "--json",
    )
    assert ran.json["tables"]["edge_x"]["placement"] == ("host" if placement == "host" else "disk")


def test_a_stream_that_cannot_be_read_leaves_no_table(tgflow, stream):
    stream.write_text(stream.read_text() + "1,2,soon,1,2\n")
    ran = tgflow("train", "-s", stream, "-o", "out", *FEATURES, "--edge-table", "disk", *SMALL)
    assert ran.code == 65
    assert [path.name for path in Path("out").iterdir()] == [".lock"]
