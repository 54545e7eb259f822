"""The bench of reuse: speeds beside none, precision over seeds."""

import math

import torch

from benchmarks import reuse, reuse_training
from benchmarks.reuse import precision_rows, speed_rows
from helpers.made_streams import made_events
from tgflow.bench.setup import Options

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


def test_precision_is_taken_with_and_without(monkeypatch):
    monkeypatch.setattr(reuse, "NEIGHBORS", 2)
    torch.manual_seed(0)
    rows = list(precision_rows(EVENTS, {"stream": "made"}, Options(quick=True)))
    ap = "reuse, AP"
    assert [row.name for row in rows] == [ap, ap, f"{ap} lost"]
    assert all(math.isfinite(row.value) for row in rows)
    assert rows[2].reached == (rows[2].value <= 0.5)
