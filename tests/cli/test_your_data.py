"""What people have, on the command line: files, times and features as they are."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.effort import slow
from helpers.live_runs import SMALL
from tgflow.config import load_config

NOON = 1_714_564_800
CHEAP = ("-m", "recency", "--batch-size", 50, "--threads", 1)


def write_plain(path, size=120, sep=" "):
    """Write events without a header: source, destination, an amount, and a time in ms."""
    rows = ((i * 3 % 10, 10 + i % 4, i * 250, (NOON + i) * 1000) for i in range(size))
    path.write_text("".join(sep.join(map(str, row)) + "\n" for row in rows))
    return path


@pytest.fixture
def plain(tmp_path):
    return write_plain(tmp_path / "plain.log", sep=";")


LAYOUT = ("--no-header", "--columns", "src,dst,amount,t", "--sep", ";")


def test_a_file_is_an_argument_of_run_and_train(tgflow, plain):
    ran = tgflow("run", plain, *LAYOUT, "--json", *CHEAP)
    assert (ran.code, ran.json["num_events"]) == (0, 120)
    assert tgflow("train", plain, *LAYOUT, "-m", "recency", "--json").json["num_events"] == 120


def test_what_was_found_out_is_said_kept_and_not_found_out_again(tgflow, plain, tmp_path):
    ran = tgflow("run", plain, *LAYOUT, "-o", "out", "--limit", 40, *CHEAP)
    assert ran.code == 0
    assert "times are read as ms, by their size (the first is 2024-05-01 12:00:00)" in ran.err
    assert "--time-unit s reads them as seconds" in ran.err
    assert load_config(tmp_path / "out/config.toml").stream.time_unit == "ms"
    again = tgflow("run", "-o", "out", "--resume", "--limit", 120)
    assert (again.code, "times are read" in again.err) == (0, False)


def test_stdin_is_a_stream(tgflow, plain, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(plain.read_bytes())))
    ran = tgflow("run", "-", *LAYOUT, "--json", *CHEAP)
    assert (ran.code, ran.json["num_events"]) == (0, 120)
    assert (tmp_path / "runs/stdin-recency/config.toml").exists()


def test_a_run_that_learned_nothing_leaves_its_place(tgflow, plain):
    assert tgflow("run", plain, *LAYOUT, "--src", "nobody", "-o", "out", *CHEAP).code == 65
    late = ("run", plain, *LAYOUT, "--time-unit", "tick", "--t", "src", "-o", "out", *CHEAP)
    assert tgflow(*late).code == 65
    assert tgflow("run", plain, *LAYOUT, "-o", "out", *CHEAP).code == 0
    assert tgflow("run", plain, *LAYOUT, "-o", "out", *CHEAP).code == 74


@pytest.mark.parametrize(
    ("command", "failing"),
    [
        ("train", ("--limit", 2)),
        slow("compare", ("--time-unit", "tick", "--t", "src", "--preset", "none")),
    ],
)
def test_whatever_learned_nothing_leaves_its_place(tgflow, plain, command, failing):
    model = ("-m", "recency") if command == "train" else ("--models", "recency")
    whole = (command, "-s", plain, *LAYOUT, *model, "-o", "out", "--batch-size", 50, "--threads", 1)
    assert tgflow(*whole, *failing).code == 65
    assert Path("out/config.toml").exists()
    ran = tgflow(*whole)
    assert ran.code == 0, ran.err
    assert tgflow(*whole).code == 74


def test_more_than_five_percent_of_bad_rows_end_a_run_of_any_size(tgflow, tmp_path):
    rows = [f"{i % 5},{5 + i % 3},{i}" for i in range(95)] + ["x,6,95"] * 5
    (tmp_path / "some.csv").write_text("\n".join(["src,dst,t", *rows]) + "\n")
    assert tgflow("run", "some.csv", "--id-kind", "int", "-o", "some", *CHEAP).code == 0
    (tmp_path / "more.csv").write_text("\n".join(["src,dst,t", *rows, "x,6,95"]) + "\n")
    ran = tgflow("run", "more.csv", "--id-kind", "int", "-o", "more", *CHEAP)
    assert ran.code == 65
    assert "6 of all 101 rows are bad, more than --max-bad-ratio 0.05" in ran.err


def test_scaled_features_are_reported(tgflow, plain):
    flags = (*LAYOUT, "--features", "amount", "--feature-scale", "auto", *SMALL)
    whole = tgflow("run", plain, *flags, "-m", "tgat", "-o", "whole", "--json")
    assert whole.code == 0
    assert whole.json["features"]["scale"] == (
        "features: all to mean 0 and deviation 1 by the first 120 events (so far)"
    )
    raw = tgflow("run", plain, *flags, "--feature-scale", "none", "-m", "tgat", "--json")
    assert raw.json["state_sha256"] != whole.json["state_sha256"]


def test_offline_features_are_scaled_by_the_training_part(tgflow, plain):
    flags = (*LAYOUT, "--features", "amount", "--feature-scale", "standard", "--epochs", 1)
    ran = tgflow("train", plain, *flags, "-m", "tgat", "--dim", 8, "--neighbors", 3, "--json")
    assert ran.code == 0, ran.err
    assert ran.json["features"]["scale"].endswith("by the first 84 events (frozen)")


def test_info_shows_classes_of_labels(tgflow, tmp_path):
    (tmp_path / "a.csv").write_text("src,dst,t,kind\n0,1,2,card\n0,1,3,cash\n0,1,4,card\n")
    ran = tgflow("info", "a.csv", "--label", "kind")
    assert "2 distinct: card = 0, cash = 1" in ran.out
    found = tgflow("info", "a.csv", "--label", "kind", "--json").out
    assert json.loads(found)["label_classes"] == ["card", "cash"]
