"""Lines that say what looks wrong in a stream though it can be read."""

from __future__ import annotations

import re

import pytest
import torch

from tgflow.cli import main
from tgflow.cli.assemble import constant_guard, huge_guard, sides_guard, time_guard

NOW = 1_714_564_800


@pytest.mark.parametrize(
    ("first", "unit", "says"),
    [
        (NOW, "s", None),
        (0, "s", None),
        (5, "tick", None),
        (NOW * 1000, "ms", None),
        (1, "s", "is before 1980 if it counts from 1970: is --t the right column?"),
        (-NOW, "s", "is before 1980 if it counts from 1970: is --t the right column?"),
        (NOW * 1000, "s", "is after 2100 if it counts from 1970: --time-unit ms?"),
        (NOW * 10**6, "s", "is after 2100 if it counts from 1970: --time-unit us?"),
        (NOW, "ms", "is before 1980 if it counts from 1970: --time-unit s?"),
        (2**62, "s", "is after 2100 if it counts from 1970: is --t the right column?"),
        (NOW * 10**9, "s", "is after 2100 if it counts from 1970: --time-unit ns?"),
    ],
)
def test_a_first_time_that_is_no_date_of_our_days(first, unit, says):
    expected = None if says is None else f"the first time, {first:,} {unit}, {says}"
    assert time_guard(first, unit) == expected


def test_two_kinds_that_share_their_ids():
    g = torch.Generator().manual_seed(0)
    users, items = (torch.randint(0, n, (2_000,), generator=g) for n in (800, 60))
    assert sides_guard(users, items).endswith("hardly one kind: --direction bipartite?")
    assert sides_guard(users, items + 10_000) is None, "they share none"
    assert sides_guard(users, users.flip(0)) is None, "as many on each side"
    both = torch.cat([users, items]), torch.cat([items, users])
    assert sides_guard(*both) is None, "who answers is of the same kind"
    assert sides_guard(users[:0], items[:0]) is None


def test_huge_and_constant_features():
    x = torch.tensor([[1.0, 5e6, 3.0], [2.0, -7e7, 3.0]])
    assert huge_guard(x, ["a", "b", "c"]) == (
        "feature b is as large as 7e+07, beside which a model sees little else: "
        "--feature-scale auto?"
    )
    assert constant_guard(x, ["a", "b", "c"]) == (
        "feature c is the same in all 2 events looked at: name others with --features"
    )
    assert huge_guard(x[:, :1], ["a"]) is None
    assert constant_guard(x[:, :2], ["a", "b"]) is None
    many = torch.full((2, 5), 1e9)
    assert huge_guard(many, list("abcde")).startswith("features a, b, c and 2 more are as large")


@pytest.fixture
def odd_stream(tmp_path):
    path = tmp_path / "odd.csv"
    rows = (f"{i * 7 % 200},{i % 9},{i + 1},{i * 90}" for i in range(200))
    path.write_text("src,dst,t,amount\n" + "\n".join(rows) + "\n")
    return path


SAID = [
    "the first time, 1 s, is before 1980 if it counts from 1970",
    "9 ids are on both sides, of 200 sources and 9 destinations that are hardly one kind",
    "feature amount is as large as 17,910, beside which a model sees little else",
]


@pytest.mark.parametrize("command", ["run", "train"])
def test_runs_and_trainings_say_them(odd_stream, capsys, monkeypatch, tmp_path, command):
    monkeypatch.chdir(tmp_path)
    flags = ["--features", "amount", "-m", "recency", "--threads", "1", "--json"]
    assert main([command, str(odd_stream), *flags]) == 0
    err = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in err if ":" in line][:3] == SAID


YEAR_1, YEAR_10000 = -62_135_596_800, 253_402_300_800
"""In Unix seconds: before the first date and after the last that Python has."""


@pytest.mark.parametrize("unit", ["s", "ns", "d", "tick"])
@pytest.mark.parametrize(
    ("first", "last"),
    [(1 - 2**63, 2**63 - 2), (YEAR_1 - 1, YEAR_10000), (NOW, 2**63 - 2), (0, 0), (NOW, NOW)],
)
def test_info_takes_any_date(tmp_path, capsys, first, last, unit):
    path = tmp_path / "odd.csv"
    path.write_text(f"src,dst,t\n0,1,{first}\n1,2,{last}\n")
    assert main(["info", str(path), "--time-unit", unit]) == 0
    assert re.search(r"\bevents\W+2\b", capsys.readouterr().out)


def test_info_says_them(odd_stream, capsys):
    assert main(["info", str(odd_stream), "--features", "amount"]) == 0
    err = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in err] == SAID
    flags = ["--features", "amount", "--feature-scale", "auto", "--direction", "bipartite"]
    assert main(["info", str(odd_stream), *flags]) == 0
    assert [line[:15] for line in capsys.readouterr().err.splitlines()] == ["the first time,"]
