"""The tables of BENCHMARKS.md and of the README: written from results, and as the results are."""

from __future__ import annotations

import math

import pytest

from benchmarks.report import PAGES, ROOT, Headline, filled, find
from benchmarks.results import load, record
from tgflow.bench.row import Row

ROWS = [
    Row("speed", 12_345.0, "events/s", {"size": 1, "library": "ours"}, target=10_000.0),
    Row(
        "speed", 900.0, "events/s", {"size": 2, "library": "ours"}, baseline=1000.0, target_ratio=1
    ),
    Row("speed", math.nan, "events/s", {"size": 2, "library": "theirs"}),
]


@pytest.mark.parametrize("page", PAGES)
def test_no_figure_of_a_page_was_typed(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert filled(text) == text


def test_results_come_back_as_they_were_recorded(tmp_path):
    result = load(record("race", "make bench ARGS=race", ROWS, tmp_path))
    assert [row.to_json() for row in result.rows] == [row.to_json() for row in ROWS]
    assert result.command == "make bench ARGS=race"
    assert "cores of" in result.machine


def test_a_table_says_what_falls_short(tmp_path):
    record("race", "make bench ARGS=race", ROWS, tmp_path)
    page = filled("Before.\n<!-- rows: race -->\nold\n<!-- end -->\nAfter.\n", tmp_path)
    assert page.startswith("Before.\n<!-- rows: race -->\n`make bench ARGS=race`; ")
    assert page.endswith("<!-- end -->\nAfter.\n")
    assert "| 1 | ours | 12.3k |  | 1.23x | 10k |" in page
    assert "| 2 | ours | 900 | 1,000 | 0.90x | **1x: short** |" in page
    assert "| 2 | theirs | – |" in page
    assert "Falls short in 1 of 3 rows: speed." in page
    assert "old" not in page


def test_a_table_without_results_says_so(tmp_path):
    page = filled("<!-- rows: race -->\nold\n<!-- end -->\n", tmp_path)
    assert page == "<!-- rows: race -->\nNot measured yet.\n<!-- end -->\n"


def test_a_headline_means_one_row():
    assert find(ROWS, Headline("", "race", "speed", {"size": 1})).value == 12_345
    with pytest.raises(ValueError, match="2 rows fit"):
        find(ROWS, Headline("", "race", "speed", {"size": 2}))


def test_values_of_one_parameter_stand_side_by_side(tmp_path):
    losses = {"ours": (1.5, 1.25), "theirs": (2.0,)}
    rows = [
        Row("TGN loss", value, "nats", {"library": library, "part": f"{part}/2"})
        for library, values in losses.items()
        for part, value in enumerate(values, 1)
    ]
    record("race", "make bench ARGS=race", rows, tmp_path)
    page = filled("<!-- rows: race -->\n<!-- end -->\n", tmp_path)
    assert "**TGN loss**, nats\n\n| library | 1/2 | 2/2 |\n| --- | --: | --: |\n" in page
    assert "| ours | 1.5 | 1.25 |\n| theirs | 2 |  |\n" in page


def test_headlines_have_the_figures_of_a_gpu_beside_them(tmp_path, monkeypatch):
    sized = {"size": 1}
    headlines = (
        Headline("racing", "race", "speed", sized, on_gpu="speed"),
        Headline("longer", "race", "speed", sized, on_gpu="speed on it", gpu_params={"size": 9}),
        Headline("alone", "race", "speed", sized),
    )
    monkeypatch.setattr("benchmarks.report.HEADLINES", headlines)
    record("race", "make bench ARGS=race", ROWS, tmp_path)
    page = "<!-- rows: headlines -->\n<!-- end -->\n"
    assert "| racing | **12.3k** events/s | 10k | 1.23 | not measured |" in filled(page, tmp_path)
    on_gpu = [Row("speed", 5e6, "events/s", sized), Row("speed on it", 7e6, "", {"size": 9})]
    record("gpu-race", "make gpu STAGES=bench (race)", on_gpu, tmp_path)
    lines = filled(page, tmp_path).splitlines()
    assert [line.split(" | ")[4] for line in lines[3:6]] == ["**5M**", "**7M**", ""]
