"""What ranks say of themselves is read by rank 0, and who is slow is found."""

from __future__ import annotations

import pytest

from tgflow.distributed.board import Board, SlowRank
from tgflow.distributed.control import Order, RankFigures


class Values(dict):
    """A store."""

    def set(self, key, value):
        self[key] = value.encode()

    def check(self, keys):
        return all(key in self for key in keys)


def test_rank_0_reads_what_each_has_said_last():
    store = Values()
    boards = [Board(store, rank, 3) for rank in range(3)]
    figures = RankFigures(1.5, 0.25, 2**40, 1, 2, 3, 4, Order.HOLD | Order.STOP)
    boards[2].post(RankFigures())
    boards[2].post(figures)
    assert boards[0].read() == {2: figures}


def seconds(*values):
    return {rank: RankFigures(compute_seconds=value) for rank, value in enumerate(values)}


@pytest.mark.parametrize(
    ("spent", "found"),
    [((1, 1.4, 1.2), None), ((1, 1, 1.6), 2), ((2, 1), 0), ((1, 1.4), None), ((9,), None)],
)
def test_a_rank_slower_than_the_median_by_half_is_found(spent, found):
    slow = SlowRank()
    assert slow.find(seconds(*[100.0] * len(spent))) is None, "there is nothing to compare with"
    named = slow.find(seconds(*(100.0 + value for value in spent)))
    assert (None if named is None else named[0]) == found


def test_a_slow_rank_is_named_once():
    slow = SlowRank()
    assert [slow.find(seconds(n, 3 * n)) for n in (1.0, 2.0, 3.0)] == [None, (1, 3.0), None]
