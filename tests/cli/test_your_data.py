"""User files, times and features: what is inferred, reported and scaled."""

import io
import json
import random
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.effort import slow
from helpers.live_runs import SMALL
from tgflow.cli import main
from tgflow.run.config import load_config
from tgflow.streams.rows.schema import time_guard

NOW = 1_714_564_800
CHEAP = ("-m", "recency", "--batch-size", 50, "--threads", 1)
LAYOUT = ("--no-header", "--columns", "src,dst,amount,t", "--sep", ";")


@pytest.fixture
def plain(tmp_path):
    """Return events without a header: source, destination, an amount, and a time in ms."""
    rows = ((i * 3 % 10, 10 + i % 4, i * 250, (NOW + i) * 1000) for i in range(120))
    path = tmp_path / "plain.log"
    path.write_text("".join(";".join(map(str, row)) + "\n" for row in rows))
    return path


def test_inferred_time_units_are_reported_and_kept(tgflow, plain, tmp_path):
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


@pytest.mark.parametrize(("flags", "refused"), [((), 1), (("--max-time-jump", "none"), 0)])
def test_time_ahead_of_the_clock_is_refused_from_stdin(tgflow, monkeypatch, flags, refused):
    times = [int(time.time()) + (3 * 86_400 if i == 99 else i // 10) for i in range(100)]
    text = "src,dst,t\n" + "".join(f"{i % 7},9,{t}\n" for i, t in enumerate(times))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
    ran = tgflow("run", "-", "--time-unit", "s", "--json", "-o", "out", *flags, *CHEAP)
    assert ran.code == 0
    assert ran.json["refused"].get("time_jump", 0) == refused
    assert ran.err.count("--max-time-jump none; such rows are refused") == refused


@pytest.mark.parametrize(
    ("command", "failing"),
    [
        ("run", ("--time-unit", "tick", "--t", "src")),
        ("train", ("--limit", 2)),
        slow("compare", ("--time-unit", "tick", "--t", "src", "--preset", "none")),
    ],
)
def test_command_that_learned_nothing_does_not_block_its_directory(tgflow, plain, command, failing):
    model = ("--models", "recency") if command == "compare" else ("-m", "recency")
    whole = (command, "-s", plain, *LAYOUT, *model, "-o", "out", "--batch-size", 50, "--threads", 1)
    assert tgflow(*whole, *failing).code == 65
    assert Path("out/config.toml").exists()
    ran = tgflow(*whole)
    assert ran.code == 0, ran.err
    assert tgflow(*whole).code == 74


def test_usual_columns_and_text_features_need_no_or_one_flag(tgflow, tmp_path):
    rows = "".join(
        f"a{i % 7},s{i % 3},{i},{i * 100},{'card' if i % 2 else 'cash'}\n" for i in range(90)
    )
    (tmp_path / "pay.csv").write_text("account,shop,at,cents,kind\n" + rows)
    flags = ("-m", "tgat", *SMALL, "-o", "out", "--features", "cents")
    refused = tgflow("run", "pay.csv", *flags, "--features", "kind")
    assert refused.code == 65
    assert (
        "pay.csv, line 2: kind is 'cash', expected a number; pass --categorical kind" in refused.err
    )
    ran = tgflow("run", "pay.csv", *flags, "--categorical", "kind", "--limit", 50)
    assert ran.code == 0, ran.err
    assert "columns by their usual names: --src account, --dst shop, --t at" in ran.err
    assert load_config(tmp_path / "out/config.toml").stream.dst == "shop"
    assert tgflow("run", "-o", "out", "--resume", "--limit", 90).code == 0
    whole = tgflow("run", "pay.csv", *flags, "--categorical", "kind", "-o", "whole", "--json")
    resumed = json.loads((tmp_path / "out/metrics.json").read_text())
    assert resumed["state_sha256"] == whole.json["state_sha256"]


def test_dates_and_decreasing_times_name_their_flags(tgflow, tmp_path):
    rows = "".join(f"{i % 7},{9 + i % 3},01/{28 - i:02}/2024\n" for i in range(20))
    (tmp_path / "days.csv").write_text("user,item,date\n" + rows)
    refused = tgflow("run", "days.csv", *CHEAP)
    assert refused.code == 65
    assert "days.csv, line 2: date is '01/28/2024', expected a number of s" in refused.err
    assert "pass --time-format %m/%d/%Y" in refused.err
    refused = tgflow("run", "days.csv", "--time-format", "%m/%d/%Y", *CHEAP)
    assert refused.code == 65
    assert "sort the whole file with --sort" in refused.err
    assert tgflow("run", "days.csv", "--time-format", "%m/%d/%Y", "--sort", *CHEAP).code == 0


def test_features_are_scaled_and_reported(tgflow, plain):
    flags = (plain, *LAYOUT, "--features", "amount", "-m", "tgat", *SMALL, "--json")
    whole = tgflow("run", *flags)
    assert whole.json["features"]["scale"] == (
        "features: all to mean 0 and deviation 1 by the first 120 events (so far)"
    )
    raw = tgflow("run", *flags, "--feature-scale", "none")
    assert raw.json["state_sha256"] != whole.json["state_sha256"]
    ran = tgflow("train", *flags, "--feature-scale", "standard", "--epochs", 1)
    assert ran.code == 0, ran.err
    assert ran.json["features"]["scale"].endswith("by the first 84 events (frozen)")
    ran = tgflow("train", *flags, "--protocol", "dyglib/1", "--epochs", 1)
    assert (ran.code, "features" in ran.json) == (0, False)


def mean_mrr(tmp_path, *flags):
    """Return the mean MRR of some seeds over the last part of a run."""
    small = ("--dim", 16, "--lr", 1e-3, "--batch-size", 50, "--threads", 1)
    small += ("--set", "learning.updates=8")
    small += ("--set", "learning.mrr_every=1")  # one in five of 450 events is too small a sample
    found = []
    for seed in range(2):
        out = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        run = ("run", "-s", tmp_path / "pay.csv", "-o", out, "--seed", seed, *small, *flags)
        assert main([str(x) for x in run]) == 0
        found.append(json.loads((out / "metrics.json").read_text())["test.mrr"])
    return sum(found) / len(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "decides", "least"),
    [
        ("tgn+pairs", False, -0.02),
        ("tgat+pairs", False, -0.02),
        ("tgn", True, 0.1),  # 0.19 and 0.21 on the mean of three seeds; 8 shops take more events
        ("tgat", True, 0.1),
    ],
)
def test_amount_features_help_if_informative_and_else_do_not_hurt(tmp_path, model, decides, least):
    """Amounts from cents to hundreds of thousands, of 30 accounts at 3 shops.

    If informative, each shop has its own prices, and an account mostly moves to the next more
    expensive shop. Otherwise it mostly stays with a shop, and amounts are random.
    """
    rng, shops, last = random.Random(11), 3, [i % 3 for i in range(30)]
    lines = ["src,dst,t,amount"]
    for i in range(3_000):
        account = rng.randrange(30)
        usual = (last[account] + 1) % shops if decides else last[account]
        last[account] = shop = usual if rng.random() < 0.8 else rng.randrange(shops)
        amount = 10.0 ** ((shop if decides else rng.uniform(0, 7)) - 2) * rng.uniform(0.9, 1.1)
        lines.append(f"{account},{30 + shop},{60 * i},{amount:.4f}")
    (tmp_path / "pay.csv").write_text("\n".join(lines) + "\n")
    without = mean_mrr(tmp_path, "-m", model)
    assert decides or without > 0.7
    amount = ("--features", "amount")
    assert mean_mrr(tmp_path, "-m", model, *amount) > without + least


def test_info_shows_classes_of_labels(tgflow, tmp_path):
    (tmp_path / "a.csv").write_text("src,dst,t,kind\n0,1,2,card\n0,1,3,cash\n0,1,4,card\n")
    assert "2 distinct: card = 0, cash = 1" in tgflow("info", "a.csv", "--label", "kind").out
    found = tgflow("info", "a.csv", "--label", "kind", "--json").json
    assert found["classes"] == {"label": ["card", "cash"]}


# Warnings of what looks wrong in a stream that can be read


@pytest.mark.parametrize(
    ("first", "unit", "says"),
    [
        (NOW, "s", None),
        (0, "s", None),
        (5, "tick", None),
        (NOW * 1000, "ms", None),
        (1, "s", "is before 1980 if it counts from 1970: is --t the right column?"),
        (1946, "s", None),  # a year
        (-NOW, "s", "is before 1980 if it counts from 1970: is --t the right column?"),
        (NOW * 1000, "s", "is after 2100 if it counts from 1970: --time-unit ms?"),
        (NOW * 10**6, "s", "is after 2100 if it counts from 1970: --time-unit us?"),
        (NOW // 86_400, "s", "is before 1980 if it counts from 1970: --time-unit d?"),
        (1, "d", None),
        (NOW, "ms", "is before 1980 if it counts from 1970: --time-unit s?"),
        (2**62, "s", "is after 2100 if it counts from 1970: is --t the right column?"),
        (NOW * 10**9, "s", "is after 2100 if it counts from 1970: --time-unit ns?"),
    ],
)
def test_implausible_first_time_is_reported(first, unit, says):
    expected = None if says is None else f"the first time, {first:,} {unit}, {says}"
    assert time_guard(first, unit) == expected


@pytest.mark.parametrize("command", ["run", "train", "info"])
def test_commands_warn_of_implausible_data(tgflow, tmp_path, command):
    rows = (f"{i * 7 % 200},{i % 9},{i + 1},{i * 90}" for i in range(200))
    (tmp_path / "odd.csv").write_text("src,dst,t,amount\n" + "\n".join(rows) + "\n")
    flags = ["--json", "--feature-scale", "none"]
    flags += ["-m", "recency", "--threads", 1] if command != "info" else []
    ran = tgflow(command, "odd.csv", "--features", "amount", *flags)
    lines = ran.err.splitlines()
    assert [line.partition(":")[0] for line in lines if ":" in line][:3] == [
        "the first time, 1 s, is before 1980 if it counts from 1970",
        "9 ids are on both sides, of 200 sources and 9 destinations that are hardly one kind",
        "feature amount is as large as 17,910, beside which a model sees little else",
    ]
    if command == "info":
        flags = ["--json", "--features", "amount", "--direction", "bipartite"]
        ran = tgflow(command, "odd.csv", *flags)
        assert [line[:15] for line in ran.err.splitlines()] == ["the first time,"]


YEAR_1, YEAR_10000 = -62_135_596_800, 253_402_300_800
"""Unix seconds before Python's first date and after its last."""


@pytest.mark.parametrize("unit", ["s", "ns", "d", "tick"])
@pytest.mark.parametrize(
    ("first", "last"),
    [(1 - 2**63, 2**63 - 2), (YEAR_1 - 1, YEAR_10000), (NOW, 2**63 - 2), (0, 0), (NOW, NOW)],
)
def test_info_shows_any_date(tgflow, tmp_path, first, last, unit):
    (tmp_path / "odd.csv").write_text(f"src,dst,t\n0,1,{first}\n1,2,{last}\n")
    ran = tgflow("info", "odd.csv", "--time-unit", unit)
    assert ran.code == 0
    assert re.search(r"\bevents\W+2\b", ran.out)
