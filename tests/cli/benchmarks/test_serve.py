"""Benchmark of serving: latency for clients in another process during training."""

import math

import pytest

from benchmarks import serve
from helpers.live_runs import SMALL, write_events

pytest.importorskip("uvicorn", reason="uvicorn is not installed")


@pytest.mark.slow
def test_rows_have_latency_quantiles_per_number_of_clients_lag_and_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(serve, "WARM_EVENTS", 400)
    monkeypatch.setattr(serve, "CLIENTS", 3)
    path, ids = serve.write_laps(write_events(tmp_path / "made.csv", 2_000), tmp_path, 40)
    assert len(ids) == 20
    flags = [*map(str, SMALL)]
    with serve.Served(path, ids, tmp_path / "run", flags=flags) as served:
        rows = [
            *serve.rows_of_latency(served, {}, 0.5, 1),
            *serve.rows_of_share(served, {}, 0.5, 1),
        ]
    assert [row.params.get("clients") for row in rows] == [1, 1, 3, 3, None, None, None]
    assert all(math.isfinite(row.value) for row in rows)
    assert rows[0].params["answers/s"] > 0
    assert rows[0].value <= rows[1].value
    assert rows[5].params["parameters MB"] > 0
    assert rows[-1].target == serve.LEAST_SHARE
