"""Ranks agree after each micro-batch, by what came with it."""

from __future__ import annotations

from tgflow.distributed.control import Order
from tgflow.peers import Alone
from tgflow.runtime.runner import Orders
from tgflow.train.rank_control import RankControl

WORDS = [Order.NONE, Order.CHECKPOINT, Order.CHECKPOINT | Order.STOP]


def test_a_run_that_is_alone_does_what_it_wants_at_once():
    orders = Orders()
    assert [orders.agree(word) for word in WORDS] == WORDS


def test_what_is_wanted_is_done_once_with_a_later_micro_batch():
    control = RankControl(Alone(), lambda: 0.0)
    orders, found = Orders(control), []
    for wanted in (Order.NONE, Order.CHECKPOINT, Order.CHECKPOINT, Order.NONE, Order.NONE):
        control.begin()  # what was asked for is the order of the next one
        found.append(orders.agree(wanted))
    assert found == [Order.NONE, Order.NONE, Order.CHECKPOINT, Order.NONE, Order.NONE]
