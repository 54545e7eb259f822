"""The ladder of loaders: each makes the same batches, and every rung is measured."""

from helpers.made_streams import made_events
from helpers.plan_reference import assert_same_batch
from tgflow.bench.options import Options
from tgflow.bench.own import own_tgn
from tgflow.bench.pipeline import RUNGS, draw, ladder_rows, overlap_row, preparation_rows
from tgflow.bench.task import Task

TASK = Task(made_events(120, x_dim=3), 100, batch_size=20, dim=8, neighbors=3)


def test_every_loader_makes_the_same_batches():
    plan = own_tgn(TASK).plan
    _, *rungs = (make(plan) for _, make, _ in RUNGS)
    python = RUNGS[0][1](plan)
    for index in range(len(plan)):
        for rung in rungs:
            batch = rung.batch(0, index)
            expected = python.batch(0, index)
            assert_same_batch(batch, expected)


def test_the_ladder_has_a_speed_and_the_same_precision_on_every_rung():
    rows = [*ladder_rows(TASK, own_tgn, {"model": "TGN"}, Options(quick=True))]
    speeds, precisions = rows[::2], rows[1::2]
    assert [row.params["loader"] for row in speeds] == [name for name, _, _ in RUNGS]
    assert all(row.value > 0 for row in speeds)
    assert [row.baseline for row in speeds] == [None, *(row.value for row in speeds[:-1])]
    assert len({row.value for row in precisions}) == 1
    assert "+ slabs" in draw(rows)


def test_preparation_is_measured_by_threads_and_beside_a_consumer(monkeypatch):
    monkeypatch.setattr("tgflow.bench.pipeline.SLEPT_BATCHES", 2)
    plan, params = own_tgn(TASK).plan, {"model": "TGN"}
    rows = [*preparation_rows(plan, params, Options(quick=True))]
    assert [row.params["threads"] for row in rows] == [1, 2, 4]
    assert all(row.value > 0 < row.baseline for row in rows)
    overlap = overlap_row(plan, params)
    assert overlap.value >= 1
    assert overlap.reached == (overlap.value <= 1.15)
    assert "Preparation by threads" in draw(rows)
