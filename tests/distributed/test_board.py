"""What ranks ask for is read by rank 0, whether or not there is a micro-batch."""

from __future__ import annotations

from tgflow.distributed.board import Board
from tgflow.distributed.control import Order


class Values(dict):
    """A store."""

    def set(self, key, value):
        self[key] = value.encode()

    def check(self, keys):
        return all(key in self for key in keys)


def test_rank_0_reads_what_each_has_asked_for_last():
    store = Values()
    boards = [Board(store, rank, 4) for rank in range(4)]
    boards[2].ask(Order.HOLD)
    boards[2].ask(Order.HOLD | Order.STOP)
    boards[3].ask(Order.STOP_FOR_MEMORY)
    boards[3].ask(Order.NONE)
    assert boards[0].read() == {2: Order.HOLD | Order.STOP, 3: Order.NONE}
