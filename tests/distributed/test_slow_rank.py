"""A rank that computes longer than the others is found, once."""

from __future__ import annotations

import pytest

from tgflow.distributed.control import RankFigures
from tgflow.distributed.slow_rank import SlowRank


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
