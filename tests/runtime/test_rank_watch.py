"""Requests of ranks to rank 0 beside the training, and the figures of all ranks."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from tgflow.distributed.control import Order, RankFigures
from tgflow.peers import Alone
from tgflow.runtime import ranks
from tgflow.runtime.log import RunLog
from tgflow.runtime.metrics import RankMetrics
from tgflow.runtime.ranks import Board, RankGuard, RankWatch
from tgflow.runtime.stream import FlowControl, MemoryGuard, MemoryLimit
from tgflow.train.rank_control import RankControl


class Values(dict):
    """Stands in for the store of torch.distributed."""

    def set(self, key, value):
        self[key] = value.encode()

    def check(self, keys):
        return all(key in self for key in keys)


def boards():
    store = Values()
    return [Board(SimpleNamespace(store=store, rank=rank, world=4)) for rank in range(4)]


def test_rank_0_pauses_and_stops_as_any_rank_asks():
    flow, found = FlowControl(), boards()
    guard = RankGuard(None, 0.0, found[0], flow)
    assert guard.judge(0) == "resume"
    found[2].ask(Order.HOLD)
    assert guard.judge(0) == "pause"
    found[2].ask(Order.NONE)
    assert guard.judge(0) == "resume"
    found[3].ask(Order.STOP)
    guard.judge(0)
    assert (flow.stopped, flow.error, flow.signal) == (True, None, "a signal to rank 3")
    found[2].ask(Order.STOP_FOR_MEMORY)
    with pytest.raises(MemoryLimit, match="rank 2 is at its memory_limit"):
        guard.judge(0)


@pytest.mark.parametrize(
    ("signal", "rss", "order"), [("SIGTERM", 10, Order.STOP), (None, 200, Order.STOP_FOR_MEMORY)]
)
def test_a_rank_asks_for_the_end_and_logs_a_memory_limit(monkeypatch, tmp_path, signal, rss, order):
    monkeypatch.setattr(ranks, "_TICK", 0.001)
    monkeypatch.setattr(ranks, "rss_bytes", lambda: rss)
    run_log = RunLog(tmp_path / "run.log", say=lambda line: None)
    flow, found = FlowControl(), boards()
    if signal:
        flow.stop_for(signal)
    with RankWatch(found[1], MemoryGuard(100, 0.0), flow, run_log):
        while found[0].read() != {1: order}:
            time.sleep(0.001)
    if rss > 100:
        assert "memory_limit = 100 B" in (tmp_path / "run.log").read_text()


def test_figures_are_those_that_came_with_the_latest_micro_batch():
    control = RankControl(Alone(), lambda: 0.0)
    metrics = RankMetrics(control)
    assert metrics.report() == {"ranks": {}}
    one = RankFigures(1.5, 0.5, 2**30, 10, 20, 30, 40)
    control.hear(Order.NONE, (RankFigures(), one))
    assert metrics.report()["ranks"]["1"] == {
        "compute_seconds": 1.5,
        "wait_seconds": 0.5,
        "memory_bytes": 2**30,
        "sent_bytes": {"gradient": 10, "rows": 20, "queries": 30, "other": 40},
    }
    assert metrics.metrics()["rank.sent_bytes"] == {"0": 0, "1": 100}
