"""Benchmark of serving: latency for clients in another process during training."""

import math

import pytest

from benchmarks import serve
from benchmarks.own import Task
from helpers.made_streams import made_events
from tgflow.bench.setup import Options

pytest.importorskip("fastapi", reason="fastapi is not installed")


@pytest.mark.slow
def test_rows_have_latency_quantiles_per_number_of_clients_and_training_slowdown(monkeypatch):
    monkeypatch.setattr(serve, "WARM_EVENTS", 200)
    monkeypatch.setattr(serve, "CLIENTS", (1, 3))
    with serve.Learning(Task(made_events(400, x_dim=3), 300, batch_size=50, dim=8)) as learning:
        rows = list(serve.rows_of(learning, {}, 0.5, Options(quick=True)))
    assert [row.params.get("clients") for row in rows] == [1, 3, None]
    assert all(math.isfinite(row.value) for row in rows)
    assert rows[0].params["answers/s"] > 0
    assert rows[-1].unit == "% slower"
    assert rows[-1].target == 5
