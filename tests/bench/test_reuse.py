"""The bench of reuse: speeds beside none, precision over seeds, and a picture of both."""

import math

import torch

from helpers.made_streams import made_events
from tgflow.bench import reuse, reuse_ahead, reuse_training
from tgflow.bench.options import Options
from tgflow.bench.reuse import draw, precision_rows, speed_rows

EVENTS = made_events(240, x_dim=0)


def make_small(monkeypatch):
    for room, name, value in (
        (reuse_training, "BATCH", 10),
        (reuse_training, "X_DIM", 3),
        (reuse_training, "NEIGHBORS", 2),
    ):
        monkeypatch.setattr(room, name, value)


def test_each_staleness_is_measured_beside_none_on_the_same_batches(monkeypatch):
    make_small(monkeypatch)
    speeds, saved = [], []
    for row in speed_rows(EVENTS, (0, 1, 4), {"stream": "wikipedia"}):
        (speeds if row.unit else saved).append(row)
    assert [row.params["staleness"] for row in speeds] == [1, 4]
    assert all(row.value > 0 and row.baseline > 0 for row in speeds)
    assert all(row.params["largest lag"] == row.params["staleness"] for row in speeds)
    assert speeds[1].params["rows of a batch"] < speeds[0].params["rows of a batch"]
    assert {row.params["without reuse"] for row in speeds} == {speeds[0].params["without reuse"]}
    assert len(saved) == 2


def test_rows_computed_ahead_are_measured_beside_reuse_without_them(monkeypatch):
    make_small(monkeypatch)
    for room in (reuse_training, reuse_ahead):
        monkeypatch.setattr(room, "TURN", 8)
    rows = list(reuse_ahead.ahead_rows(EVENTS, {"stream": "made"}))
    assert [row.params["by"] for row in rows] == ["threads", "the training"]
    assert all(row.value > 0 and row.baseline > 0 for row in rows)
    assert rows[1].params["in time"] == 0.0
    assert all(row.params["hot rows of a batch"] > 0 for row in rows)


def test_precision_is_taken_with_and_without_and_drawn(monkeypatch):
    monkeypatch.setattr(reuse, "NEIGHBORS", 2)
    torch.manual_seed(0)
    rows = list(precision_rows(EVENTS, {"stream": "made"}, Options(quick=True)))
    ap, ahead = "reuse, AP", "reuse, computed ahead, AP"
    assert [row.name for row in rows] == [ap, ap, f"{ap} lost", ahead, f"{ahead} lost"]
    assert all(math.isfinite(row.value) for row in rows)
    assert rows[2].reached == (rows[2].value <= 0.5)
    picture = draw(rows)
    assert picture.startswith("<svg")
    assert "made" in picture
