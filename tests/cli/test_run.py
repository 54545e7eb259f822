"""`tgflow run` from end to end."""

from __future__ import annotations

import json
import re

from helpers.live_runs import SMALL
from tgflow.checkpoint import load
from tgflow.config import load_config
from tgflow.ids import NodeIds


def test_run_leaves_all_that_it_promises_and_can_start_again(tgflow, events_csv, tmp_path):
    ran = tgflow("run", "-s", events_csv, "-o", "out", "--seed", 3, *SMALL)
    assert ran.code == 0
    out = tmp_path / "out"
    assert {p.name for p in out.iterdir()} == {
        "config.toml", "metrics.jsonl", "metrics.json", "report.html", "stream.json",
        "health.json", "run.log", "checkpoints", "log", "dead-letters", ".lock",
    }  # fmt: skip
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [r["stop"] for r in records] == [50, 100, 150, 200, 250, 300, 350, 400]
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["num_events"] == 400
    assert 0 < metrics["test.ap"] <= 1
    assert 0 < metrics["prequential.mrr"] <= 1
    assert metrics["events_per_second"] > 0
    for name in ("tgn+pairs, 400 events", "report.html", "AP", "MRR", "event-exact", "ties"):
        assert name in ran.out
    assert "events/s" in ran.err
    [path] = (out / "checkpoints").iterdir()
    checkpoint = load(path)
    ids = NodeIds()
    ids.load_state_dict(checkpoint.sections["ids"])
    assert sorted(ids.decode(checkpoint.sections["events"]["src"].unique())) == list(range(20))
    assert checkpoint.meta["model"]["name"] == "tgn+pairs"
    again = tgflow("run", "--config", "out/config.toml", "-o", "b", "--json")
    assert load_config(tmp_path / "out/config.toml") == load_config(tmp_path / "b/config.toml")
    assert again.json["state_sha256"] == metrics["state_sha256"]


def test_neighbors_are_sampled_as_asked(tgflow, events_csv):
    plain = ["-s", events_csv, "-m", "tgn", "--json", *SMALL]
    ran = tgflow("run", *plain, "--strategy", "decayed", "--span", 3600)
    assert ran.json["prequential.loss"] != tgflow("run", *plain).json["prequential.loss"]


def test_the_model_is_chosen_and_kept_on_resume(tgflow, events_csv, tmp_path):
    plain = ["-s", events_csv, "--json", *SMALL]
    pairs = tgflow("run", *plain, "--limit", 100)
    assert (pairs.json["model"], pairs.json["num_events"]) == ("tgn+pairs", 100)
    assert pairs.json["counts_bytes"] > 0
    ran = tgflow("run", "-m", "tgn", "--limit", 100, *plain)
    assert (ran.json["model"], "counts_bytes" in ran.json) == ("tgn", False)
    assert {p.name for p in (tmp_path / "runs").iterdir()} == {"made-tgn", "made-tgn-2"}
    ran = tgflow("run", "--resume", "--limit", 150, "--json", "-o", "runs/made-tgn-2")
    assert ran.json["model"] == "tgn"


def test_no_events_at_all_is_a_run_too(tgflow, tmp_path):
    (tmp_path / "none.csv").write_text("src,dst,t\n")
    ran = tgflow("run", "-s", "none.csv", "--json", *SMALL)
    assert (ran.code, ran.json["num_events"]) == (0, 0)


OWN = """
import tgflow as tg


class Mine(tg.TGAT):
    def __init__(self, **settings):
        super().__init__(embedding_dim=8, time_dim=4, neighbors=2)


class Reciprocal:
    def update(self, positive, negative):
        self.ranks = tg.metrics.ranks(positive, negative)

    def compute(self):
        return float(self.ranks.reciprocal().mean())
"""
METRIC = ("--metric", "own_parts:Reciprocal")


def test_a_run_takes_an_own_model_and_an_own_metric(tgflow, resume, events_csv, tmp_path):
    (tmp_path / "own_parts.py").write_text(OWN)
    own = ("-m", "own_parts:Mine", *METRIC, "--batch-size", 200, "-o", "out")
    ran = tgflow("run", "-s", events_csv, *own, "--limit", 200)
    assert ran.code == 0, ran.err
    assert re.search(r"Reciprocal +0\.\d+ +0\.\d+", ran.out)
    assert "Reciprocal 0." in ran.err
    ran = resume("--limit", 400, "--json")
    assert ran.code == 0, ran.err
    assert ran.json["model"] == "own_parts:Mine"
    assert ran.json["prequential.Reciprocal"] == ran.json["prequential.mrr"]
    records = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").open()]
    assert len(records) == 2
    for record in records:
        assert record["metrics.Reciprocal"] == record["metrics.mrr"]
    assert (tmp_path / "out/report.html").read_text().count("Reciprocal") >= 2
    found = tgflow("info", "out", "--json").json
    assert found["own_metrics"] == ["Reciprocal"]
    for part in ("prequential", "test"):
        shown = f"{found['metrics'][f'{part}.Reciprocal']:.4f}"
        assert re.search(rf"{part}\.Reciprocal +{shown}", tgflow("info", "out").out)


def test_train_and_compare_show_an_own_metric(tgflow, events_csv, tmp_path):
    (tmp_path / "own_parts.py").write_text(OWN)
    ran = tgflow("train", "-s", events_csv, *SMALL, *METRIC, "--epochs", 1, "-o", "trained")
    assert ran.code == 0, ran.err
    assert re.search(r"Reciprocal +0\.\d+ +0\.\d+", ran.out)
    ran = tgflow("compare", "-s", events_csv, "--models", "recency,poptrack", *METRIC, "-o", "all")
    assert ran.code == 0, ran.err
    assert "Reciprocal" in ran.out
    assert "<th>Reciprocal" in (tmp_path / "all/report.html").read_text()
    ran = tgflow("run", "-s", events_csv, "--metric", "own_parts:Other")
    assert ran.code == 2
    assert "--metric: module 'own_parts' has no attribute 'Other'" in ran.err
