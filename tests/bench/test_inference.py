"""The bench of inference: the same scores with and without a memo, and each fan-out measured."""

import math

import torch

from helpers.made_streams import made_events
from tgflow.bench.inference import FANOUTS, fanout_rows, memo_row
from tgflow.bench.options import Options
from tgflow.bench.task import Task
from tgflow.events import EventBatch


def test_a_memo_is_measured_beside_none_on_equal_scores(monkeypatch):
    monkeypatch.setattr("tgflow.bench.inference.BATCH", 20)
    task = Task(made_events(300, x_dim=3), 250, dim=8)
    row = memo_row(task, 3, 1, {"stream": "made"})
    assert row.value > 0
    assert row.baseline > 0
    assert row.params["largest difference"] < 1e-5
    assert 0.1 < row.params["rows found"] < 1
    assert row.target_ratio == 2.5


def test_every_fanout_has_a_precision_and_a_speed(monkeypatch):
    monkeypatch.setattr("tgflow.bench.inference.TRAINED_WITH", 2)
    made = made_events(200, x_dim=0)
    events = EventBatch(made.src, made.dst, made.t)
    torch.manual_seed(0)
    rows = list(fanout_rows(events, 1, {"stream": "made"}, Options()))
    by_name = [(row.name, row.params.get("neighbors")) for row in rows]
    assert len(set(by_name)) == 2 * len(FANOUTS) + 1 == len(rows)
    assert all(math.isfinite(row.value) for row in rows)
    assert rows[-1].unit == "points"
    assert rows[-1].reached == (rows[-1].value <= 0.2)
