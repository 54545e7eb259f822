"""The tables of BENCHMARKS.md and the README are generated from results."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchmarks.report import PAGES, ROOT, Picked, cpu_rows, filled
from benchmarks.results import Result, record
from tgflow.cli.benchmarks.row import Row

ROWS = [
    Row("speed", 12_345.0, "events/s", {"size": 1, "library": "ours"}, target=10_000.0),
    Row(
        "speed", 900.0, "events/s", {"size": 2, "library": "ours"}, baseline=1000.0, target_ratio=1
    ),
    Row("speed", math.nan, "events/s", {"size": 2, "library": "theirs"}),
]


@pytest.mark.parametrize("page", PAGES)
def test_all_figures_of_a_page_come_from_results(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert filled(text) == text


def test_table_marks_missed_targets(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.report.TABLES", {"races": (Picked("race", ("speed",)),)})
    record("race", "make bench ARGS=race", ROWS, tmp_path)
    page = "Before.\n<!-- rows: races -->\nold\n<!-- end -->\n<!-- rows: missed -->\n<!-- end -->\n"
    page = filled(page, tmp_path)
    assert page.startswith("Before.\n<!-- rows: races -->\n| what | of | measured |")
    assert "| speed | size 1, library ours | 12.3k events/s |  | 1.23x | 10k |" in page
    assert "| 900 events/s | 1,000 | 0.90x | **1x: missed** |" in page
    assert "race: `make bench ARGS=race`, " in page
    assert "- race: speed (1 of 3, at worst 0.90x)" in page
    assert "old" not in page


def test_ratio_is_kept_for_each_machine():
    row = Row("TGN training, beside a peer", 9.0, "events/s", baseline=3.0)
    row = replace(row, params={"library": "torch_geometric", "precision": "fp32"})
    first = Result("A", "1", "c1", "", (row,))
    other = replace(first, machine="B", rows=(replace(row, value=6.0),))
    kept = cpu_rows(cpu_rows([], first), other)
    assert [(each.params["machine"], each.value) for each in kept] == [("B", 2), ("A", 3)]
    again = cpu_rows(kept, replace(first, commit="c2", rows=(replace(row, value=3.0),)))
    assert [(each.params["commit"], each.value) for each in again] == [("c2", 1), ("c1", 2)]
    assert cpu_rows(kept, replace(first, rows=())) == kept


def test_benchmarks_page_is_short():
    assert (ROOT / "BENCHMARKS.md").read_text(encoding="utf-8").count("\n") <= 255
