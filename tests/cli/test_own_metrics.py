"""`--metric module:Class` in `run`, `train` and `compare`."""

from __future__ import annotations

import json
import re

import pytest

MODULE = """
import tgflow as tg

class Reciprocal:
    def update(self, positive, negative):
        self.ranks = tg.metrics.ranks(positive, negative)

    def compute(self):
        return float(self.ranks.reciprocal().mean())
"""
MODEL = ("--model", "tgn", "--model-set", "memory_dim=8", "--model-set", "embedding_dim=8")


@pytest.fixture
def metric(tmp_path):
    (tmp_path / "own_metrics.py").write_text(MODULE)
    return ("--metric", "own_metrics:Reciprocal")


def test_run_shows_saves_and_resumes_a_metric(tgflow, resume, events_csv, metric, tmp_path):
    ran = tgflow("run", "-s", events_csv, *MODEL, *metric, "-o", "out", "--limit", "200")
    assert ran.code == 0, ran.err
    assert re.search(r"Reciprocal +0\.\d+ +0\.\d+", ran.out)
    assert "Reciprocal 0." in ran.err
    ran = resume("--limit", "400", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["prequential.Reciprocal"] == ran.json["prequential.mrr"]
    records = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").open()]
    assert len(records) == 2
    for record in records:
        assert record["metrics.Reciprocal"] == record["metrics.mrr"]
    assert (tmp_path / "out/report.html").read_text().count("Reciprocal") >= 2


def test_train_and_compare_show_a_metric(tgflow, events_csv, metric, tmp_path):
    ran = tgflow("train", "--data", events_csv, *MODEL, *metric, "--epochs", "1", "-o", "trained")
    assert ran.code == 0, ran.err
    assert re.search(r"Reciprocal +0\.\d+ +0\.\d+", ran.out)
    ran = tgflow("compare", "-s", events_csv, "--models", "recency,poptrack", *metric, "-o", "all")
    assert ran.code == 0, ran.err
    assert "Reciprocal" in ran.out
    assert "<th>Reciprocal" in (tmp_path / "all/report.html").read_text()


def test_a_metric_that_does_not_exist_is_refused(tgflow, events_csv, metric):
    ran = tgflow("run", "-s", events_csv, "--metric", "own_metrics:Other")
    assert ran.code == 2
    assert "--metric: module 'own_metrics' has no attribute 'Other'" in ran.err
