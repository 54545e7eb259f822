"""What ranks ask of rank 0 beside the training, what it does then, and what it says of them."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from tgflow.distributed.control import Order, RankFigures
from tgflow.peers import Alone
from tgflow.runtime import ranks
from tgflow.runtime.log import RunLog
from tgflow.runtime.ranks import Board, RankGuard, RankMetrics, RankWatch
from tgflow.runtime.stream import FlowControl, MemoryGuard, MemoryLimit
from tgflow.train.rank_control import RankControl


class Asked:
    """A board that is in this process."""

    def __init__(self, **asks):
        self.asks = {int(rank.removeprefix("rank_")): order for rank, order in asks.items()}
        self.heard = []

    def ask(self, order):
        self.heard.append(order)

    def read(self):
        return self.asks


@pytest.fixture
def run_log(tmp_path):
    return RunLog(tmp_path / "run.log", say=lambda line: None)


def guard(limit=None, grace=0.0):
    return MemoryGuard(limit, grace)


def judged(flow=None, **asks):
    return RankGuard(guard(), Asked(**asks), flow or FlowControl()).judge(0)


def test_rank_0_holds_the_stream_while_any_rank_asks_it_to():
    assert judged() == "resume"
    assert judged(rank_1=Order.NONE, rank_2=Order.NONE) == "resume"
    assert judged(rank_1=Order.NONE, rank_2=Order.HOLD) == "pause"


def test_rank_0_stops_the_stream_for_a_signal_to_any_rank():
    flow = FlowControl()
    judged(flow, rank_3=Order.STOP)
    assert (flow.stopped, flow.error, flow.signal) == (True, None, "a signal to rank 3")


def test_rank_0_ends_all_if_a_rank_is_at_its_limit():
    with pytest.raises(MemoryLimit, match="rank 2 is at its memory_limit"):
        judged(rank_2=Order.STOP_FOR_MEMORY)


def watched(monkeypatch, run_log, rss, flow, until):
    """Return what a rank has asked for until it has asked for something."""
    monkeypatch.setattr(ranks, "_TICK", 0.001)
    monkeypatch.setattr(ranks, "rss_bytes", lambda: rss)
    board = Asked()
    with RankWatch(board, guard(limit=100), flow, run_log):
        while until not in board.heard:
            time.sleep(0.001)
    return board.heard


def test_a_rank_with_a_signal_asks_for_the_end_once(monkeypatch, run_log):
    flow = FlowControl()
    flow.stop_for("SIGTERM")
    assert watched(monkeypatch, run_log, 10, flow, Order.STOP) == [Order.STOP]


def test_a_rank_at_its_limit_asks_for_the_end_and_logs_why(monkeypatch, run_log, tmp_path):
    heard = watched(monkeypatch, run_log, 200, FlowControl(), Order.STOP_FOR_MEMORY)
    assert heard[-1] == Order.STOP_FOR_MEMORY
    assert "memory_limit = 100 B" in (tmp_path / "run.log").read_text()


def test_figures_are_those_that_came_with_the_latest_micro_batch():
    control = RankControl(Alone(), lambda: 0.0)
    metrics = RankMetrics(control)
    assert metrics.describe() == {}
    one = RankFigures(1.5, 0.5, 2**30, 10, 20, 30, 40)
    control.hear(Order.NONE, (RankFigures(), one))
    assert metrics.health()["ranks"]["1"] == {
        "compute_seconds": 1.5,
        "wait_seconds": 0.5,
        "memory_bytes": 2**30,
        "sent_bytes": {"gradient": 10, "rows": 20, "queries": 30, "other": 40},
    }
    assert metrics.metrics()["rank.sent_bytes"] == {"0": 0, "1": 100}


class Values(dict):
    """Stands in for the store of torch.distributed."""

    def set(self, key, value):
        self[key] = value.encode()

    def check(self, keys):
        return all(key in self for key in keys)


def test_board_returns_the_last_request_of_each_rank():
    store = Values()
    boards = [Board(SimpleNamespace(store=store, rank=rank, world=4)) for rank in range(4)]
    boards[2].ask(Order.HOLD)
    boards[2].ask(Order.HOLD | Order.STOP)
    boards[3].ask(Order.STOP_FOR_MEMORY)
    boards[3].ask(Order.NONE)
    assert boards[0].read() == {2: Order.HOLD | Order.STOP, 3: Order.NONE}
