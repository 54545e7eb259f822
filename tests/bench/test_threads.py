"""The benchmark of threads."""

from benchmarks import threads
from helpers.made_streams import made_events
from tgflow import _core
from tgflow.bench.setup import Options
from tgflow.bench.train import Task, own_tgn

TASK = Task(made_events(120, x_dim=3), 100, batch_size=20, dim=8, neighbors=3)


def test_a_training_is_measured_on_one_thread_and_on_all(monkeypatch):
    monkeypatch.setattr(threads, "num_cores", lambda: 2)
    before = _core.num_threads()
    one, two = threads.training_rows(TASK, own_tgn, {"model": "TGN"}, Options(quick=True))
    assert (one.params["threads"], two.params["threads"]) == (1, 2)
    assert two.baseline == one.value > 0 < two.value
    assert two.reached == (two.ratio >= 1.7)
    assert _core.num_threads() == before


def test_one_core_has_no_row_of_a_second_thread(monkeypatch):
    monkeypatch.setattr(threads, "num_cores", lambda: 1)
    params = {"model": "TGN", "events": 120}
    assert len([*threads.training_rows(TASK, own_tgn, params, Options(quick=True))]) == 1
