"""`tgflow train` end to end."""

import json

import pytest

from helpers.board_files import write_board
from helpers.files import write_tgb
from helpers.live_runs import SMALL
from helpers.rank_runs import codes, open_nothing, run_ranks
from tgflow.checkpoint import read_manifest

FEW = ("--epochs", 2, "--mrr-negatives", 5, *SMALL)


def test_train_writes_the_published_figures(tgflow, events_csv, tmp_path):
    kinds = ("--test-negatives", "random", "--test-negatives", "historical")
    flags = (*kinds, "--eval-neighbors", 7, "--negatives", "random:3,source:2", *FEW)
    ran = tgflow("train", "--data", events_csv, "-m", "tgn", "-o", "out", *flags)
    assert ran.code == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    for key in ("test.ap", "test.auc", "test.mrr", "epoch_seconds", "events_per_second"):
        assert metrics[key] > 0
    assert {"test.ap", "test.historical.ap"} <= set(metrics)
    assert metrics["protocol"] == "offline 70/15/15"
    assert "evaluated with 7 neighbors" in metrics["protocol_line"]
    assert "learned from random:3,source:2" in metrics["protocol_line"]
    assert metrics["negatives"] == "random:3,source:2"
    assert (metrics["model"], "counts_bytes" in metrics) == ("tgn", False)
    records = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in records] == [0, 1]
    assert (tmp_path / "out" / "checkpoint" / "manifest.json").exists()
    assert "Test AP" in (tmp_path / "out" / "report.html").read_text()
    assert "val AP" in ran.err
    assert "ties" in ran.out  # of the line that defines the figures


def test_several_seeds_give_mean_and_deviation(tgflow, events_csv, tmp_path):
    metrics = tgflow("train", "-s", events_csv, "--seeds", 2, "--json", "-o", "out", *FEW).json
    assert (metrics["seeds"], metrics["num_events"]) == ([0, 1], 400)
    assert (metrics["model"], metrics["counts_bytes"] > 0) == ("tgn+pairs", True)
    each = [run["test.ap"] for run in metrics["runs"]]
    assert metrics["test.ap"] == pytest.approx(sum(each) / 2)
    assert metrics["test.ap_std"] == pytest.approx(abs(each[0] - each[1]) / 2**0.5)
    assert not {"best_epoch", "seed"} & metrics.keys()
    assert (tmp_path / "out" / "checkpoint" / "1" / "manifest.json").exists()


def test_epoch_of_a_rule_has_no_loss(tgflow, events_csv):
    ran = tgflow("train", "-s", events_csv, "-m", "recency", "-o", "out")
    assert ran.code == 0
    assert "seed 0  one pass  val AP" in ran.err
    assert "loss" not in ran.err


def test_lower_layer_rows_can_be_reused(tgflow, events_csv):
    tgat = ("train", "-s", events_csv, "-m", "tgat", *FEW)
    ran = tgflow(*tgat, "--reuse-staleness", "4", "--set", "reuse.refresh=0.5", "--json")
    assert ran.json["reuse.reused"] > 0
    assert 0 < ran.json["reuse.largest_lag"] <= 4
    assert "lower layers' rows up to 4 batches old" in ran.json["protocol_line"]


def test_converted_data_set_is_trained_under_its_protocol(tgflow, tmp_path):
    events = write_tgb(tmp_path / "raw")
    ran = tgflow("convert", "tgb", "raw", "--out", "data")
    assert ran.code == 0
    assert f"{len(events)} events, " in ran.out
    assert "negatives of val, " in ran.out
    ran = tgflow(
        "train", "--data", "data/tgbl-made.parquet", "--features", "f*", "--protocol", "tgbl/1",
        "--fixed-negatives", "data/tgbl-made", "--epochs", 1, "-o", "out", *SMALL,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["protocol"] == "tgbl/1"
    assert 0 < metrics["test.mrr"] <= 1
    assert "fixed negatives of tgbl-made" in metrics["protocol_line"]
    assert "tgbl/1: split of tgbl-made" in ran.out
    assert "val MRR 0." in ran.err
    assert ran.out.index(" MRR ") < ran.out.index(" AP ")
    assert "tgbl/1: split of tgbl-made" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize("name", ["thgl-made", "tkgl-yago", "tkgl-wikidata", "ML-made"])
def test_printed_command_trains_under_the_protocol_of_the_board(tgflow, tmp_path, name):
    write_board(tmp_path / "raw", name)
    printed = tgflow("convert", "tgbseq" if name == "ML-made" else "tgb", "raw", "-o", "data").out
    words = [word.strip("'") for word in printed.splitlines()[-1].split()[1:]]
    words[words.index("--seeds") + 1] = 2
    ran = tgflow(*words, "-m", "counts", "--epochs", 1, "-o", "out")
    assert ran.code == 0, ran.err
    assert f"row of {name}: counts (tgflow), test 0." in ran.out
    assert f"The board of {name}" in (tmp_path / "out" / "report.html").read_text()
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    protocol = "tgbseq/1" if name == "ML-made" else f"{name[:4]}/1"
    assert metrics["protocol"] == metrics["data_set"]["protocol"] == protocol
    assert 0 < metrics["test.mrr"] < 1
    num = (1 + (protocol == "tkgl/1")) * 240
    assert metrics["num_events"] == num == int(metrics["data_set"]["num_events"])


@pytest.mark.slow
def test_ranks_train_like_one_process_and_only_rank_0_opens_the_stream(
    tgflow, events_csv, tmp_path
):
    options = ("train", "--data", events_csv, *SMALL, "--epochs", 2, "--model-set", "dropout=0.1")
    one, two = tmp_path / "one", tmp_path / "two"
    assert tgflow(*options, "--out", one, "--slices", 2).code == 0
    argv = [str(each) for each in (*options, "--out", two)]
    assert codes(run_ranks(tmp_path, 2, argv, open_nothing)) == [0, 0]
    found, expected = (read_manifest(run / "checkpoint") for run in (one, two))
    assert found["files"] == expected["files"]
    assert found["state_sha256"] == expected["state_sha256"]
