"""The pictures of the guides: drawn from results, shown once these are there, and as they are."""

from __future__ import annotations

import re

from benchmarks.pictures import PICTURES, draw_pictures
from benchmarks.report import GUIDES, filled
from benchmarks.results import record
from tgflow.bench.pipeline import LADDER, RUNGS
from tgflow.bench.row import Row

ROWS = [
    Row(LADDER, 1000.0 * speed, "events/s", {"model": "TGN", "loader": name, "threads": 2})
    for speed, (name, _, _) in enumerate(RUNGS, 1)
]
PAGE = "Before.\n<!-- picture: pipeline -->\nto come\n<!-- end -->\nAfter.\n"


def test_a_picture_is_drawn_and_shown_once_its_results_are_there(tmp_path):
    draw_pictures(tmp_path, tmp_path)
    assert not list(tmp_path.iterdir())
    assert filled(PAGE, tmp_path) == PAGE
    record("pipeline", "make bench ARGS=pipeline", ROWS, tmp_path)
    draw_pictures(tmp_path, tmp_path)
    drawn = (tmp_path / "how-fast-ladder.svg").read_text(encoding="utf-8")
    assert all(name in drawn for name, _, _ in RUNGS)
    shown = filled(PAGE, tmp_path)
    assert "](how-fast-ladder.svg)\n\nDrawn from what `make bench ARGS=pipeline` meas" in shown
    assert "to come" not in shown
    assert shown.endswith(".\n<!-- end -->\nAfter.\n")


def test_pictures_of_guides_are_as_their_results_draw_them(tmp_path):
    draw_pictures(tmp_path)
    assert (tmp_path / "how-fast-ladder.svg").exists()
    for file in tmp_path.iterdir():
        there = GUIDES / file.name
        assert file.read_text(encoding="utf-8") == there.read_text(encoding="utf-8")


def test_every_picture_has_a_place():
    pages = "".join(file.read_text(encoding="utf-8") for file in GUIDES.glob("*.md"))
    assert sorted(re.findall(r"<!-- picture: ([\w-]+) -->", pages)) == sorted(PICTURES)
