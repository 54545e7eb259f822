"""`tgflow train` from end to end."""

from __future__ import annotations

import json

import pytest

from helpers.live_runs import SMALL
from helpers.rank_runs import codes, open_nothing, run_ranks
from tgflow.checkpoint import read_manifest
from tgflow.cli.offline import average

FEW = ("--epochs", 2, "--mrr-negatives", 5, *SMALL)


def test_train_writes_the_published_figures(tgflow, events_csv, tmp_path):
    ran = tgflow("train", "--data", events_csv, "-o", "out", *FEW)
    assert ran.code == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    for key in ("test.ap", "test.auc", "test.mrr", "epoch_seconds", "events_per_second"):
        assert metrics[key] > 0
    assert metrics["protocol"] == "offline 70/15/15"
    records = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in records] == [0, 1]
    assert (tmp_path / "out" / "checkpoint" / "manifest.json").exists()
    assert "Test AP" in (tmp_path / "out" / "report.html").read_text()
    assert "val AP" in ran.err
    assert "ties" in ran.out  # of the line that says what figures are to be compared by


def test_several_seeds_give_mean_and_deviation(tgflow, events_csv, tmp_path):
    ran = tgflow("train", "-s", events_csv, "--seeds", 2, "--json", "-o", "out", *FEW)
    metrics = ran.json
    assert metrics["seeds"] == [0, 1]
    each = [run["test.ap"] for run in metrics["runs"]]
    assert metrics["test.ap"] == pytest.approx(sum(each) / 2)
    assert metrics["test.ap_std"] > 0
    assert (tmp_path / "out" / "checkpoint" / "1" / "manifest.json").exists()


def test_train_has_the_default_model_of_run_and_the_paper_s_by_its_name(tgflow, events_csv):
    ran = tgflow("train", "-s", events_csv, "-m", "tgn", "--json", *FEW)
    assert ran.json["model"] == "tgn"
    assert "counts_bytes" not in ran.json
    ran = tgflow("train", "-s", events_csv, "--json", *FEW)
    assert ran.json["model"] == "tgn+pairs"
    assert ran.json["counts_bytes"] > 0


def test_kinds_of_negatives_are_tested_one_by_one(tgflow, events_csv):
    ran = tgflow(
        "train", "-s", events_csv, "--negatives", "random", "--negatives", "historical",
        "--json", *FEW,
    )  # fmt: skip
    assert {"test.ap", "test.historical.ap"} <= set(ran.json)


def test_evaluation_may_read_more_neighbors_than_training(tgflow, events_csv):
    ran = tgflow("train", "-s", events_csv, "--eval-neighbors", "7", "--json", *FEW)
    assert "evaluated with 7 neighbors" in ran.json["protocol_line"]


def test_rows_of_lower_layers_may_be_reused(tgflow, events_csv):
    tgat = ("train", "-s", events_csv, "-m", "tgat", *FEW)
    ran = tgflow(*tgat, "--reuse-staleness", "4", "--reuse-refresh", "0.5", "--json")
    assert ran.json["reuse.reused"] > 0
    assert 0 < ran.json["reuse.largest_lag"] <= 4
    assert "lower layers' rows up to 4 batches old" in ran.json["protocol_line"]
    ran = tgflow(*tgat, "--reuse-staleness", "4", "--reuse-producer", "cpu")
    assert "rows reused, at most" in ran.out
    assert "hot ones 2 batches ahead" in ran.out


@pytest.mark.slow
def test_ranks_train_as_one_process_does_and_rank_0_alone_opens_the_stream(
    tgflow, events_csv, tmp_path
):
    options = ("train", "--data", events_csv, *SMALL, "--epochs", 2, "--dropout", 0.1)
    one, two = tmp_path / "one", tmp_path / "two"
    assert tgflow(*options, "--out", one, "--slices", 2).code == 0
    argv = [str(each) for each in (*options, "--out", two)]
    assert codes(run_ranks(tmp_path, 2, argv, open_nothing)) == [0, 0]
    found, expected = (read_manifest(run / "checkpoint") for run in (one, two))
    assert found["files"] == expected["files"]
    assert found["state_sha256"] == expected["state_sha256"]


def test_average_leaves_out_what_has_no_mean():
    runs = [
        {"seed": 0, "test.ap": 0.5, "best_epoch": 3, "num_events": 10, "model": "tgn"},
        {"seed": 1, "test.ap": 0.7, "best_epoch": 9, "num_events": 10, "model": "tgn"},
    ]
    mean = average(runs)
    assert mean["test.ap"] == pytest.approx(0.6)
    assert mean["test.ap_std"] == pytest.approx(0.02**0.5)
    assert mean["num_events"] == 10
    assert "best_epoch" not in mean
    assert "seed" not in mean
