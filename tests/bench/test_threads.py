"""Trainings by threads, and beside each other: every row is there, and a failure is named."""

import sys

import pytest

from benchmarks import threads
from benchmarks.side_work import SideWork, measure
from helpers.made_streams import made_events
from tgflow import _core
from tgflow.bench.options import Options
from tgflow.bench.own import own_tgn
from tgflow.bench.task import Task

TASK = Task(made_events(120, x_dim=3), 100, batch_size=20, dim=8, neighbors=3)


def test_a_training_is_measured_on_one_thread_and_on_all(monkeypatch):
    monkeypatch.setattr(threads, "num_cores", lambda: 2)
    before = _core.num_threads()
    one, two = threads.training_rows(TASK, own_tgn, {"model": "TGN"}, Options(quick=True))
    assert (one.params["threads"], two.params["threads"]) == (1, 2)
    assert two.baseline == one.value > 0 < two.value
    assert two.reached == (two.ratio >= 1.7)
    assert _core.num_threads() == before


def test_one_core_has_neither_a_second_thread_nor_a_neighbor(monkeypatch):
    monkeypatch.setattr(threads, "num_cores", lambda: 1)
    params = {"model": "TGN", "events": 120}
    assert len([*threads.training_rows(TASK, own_tgn, params, Options(quick=True))]) == 1
    assert not [*threads.side_rows(params, Options(quick=True))]


def test_a_training_goes_round_its_task_until_the_time_is_up(monkeypatch):
    own, times = own_tgn(TASK, num_threads=0), iter([0.0, 1.0, 2.0, 3.0, 5.0, 5.0])
    turns = iter([[0.7] * 5, [], [0.7] * 5])
    rewound = []
    monkeypatch.setattr(own, "train", lambda num_batches: next(turns))
    monkeypatch.setattr(own, "rewind", lambda: rewound.append(True))
    assert measure(own, 4.0, lambda: next(times)) == 10 * 20 / 5.0
    assert len(rewound) == 1


def test_a_process_that_fails_is_named(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="a training beside others has failed"):
        threads.speeds_of([SideWork(400, 0.1, 1, 1)])


@pytest.mark.slow  # five processes that import torch
def test_two_trainings_run_side_by_side():
    rows = [*threads.side_rows({"events": 2_000}, Options(quick=True))]
    assert [row.params["trainings"] for row in rows] == [1, 2, 2]
    assert all(row.value > 0 for row in rows)
    assert [row.baseline for row in rows] == [None, rows[0].value, rows[0].value]
