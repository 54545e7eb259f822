"""The breaker: a function of the rows, not of how they come."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from tgflow.streams.errors import TooManyBadRecords
from tgflow.streams.ingest.breaker import CircuitBreaker
from tgflow.streams.rows.row_batch import BadRow, Origin


def feed(rows, sizes, ratio=0.05, partition=0):
    """Feed rows (True for bad) in polls of `sizes`, through JSON each time; return where it broke.

    The row is found by feeding the poll that broke once more, row by row.
    """
    breaker, start, i = CircuitBreaker("s", ratio), 0, 0
    while start < len(rows):
        part = rows[start : start + sizes[i % len(sizes)]]
        state = json.loads(json.dumps(breaker.to_json()))
        breaker = CircuitBreaker("s", ratio)
        breaker.restore(state)
        try:
            breaker.see(partition, len(part), bad_rows(part))
        except TooManyBadRecords:
            if len(part) == 1:
                return start
            breaker.restore(state)
            sizes, i = [1], 0
            continue
        start += len(part)
        i += 1
    return None


def bad_rows(part):
    origin = Origin({"byte": 0}, b"")
    return [BadRow(i, "type", "src is 'x'", origin) for i, bad in enumerate(part) if bad]


def test_a_first_thousand_all_bad_trips_the_breaker_whatever_the_ratio():
    assert feed([True] * 999 + [False], [100], ratio=1) is None
    assert feed([True] * 1000, [300], ratio=1) == 999
    assert feed([False] + [True] * 5000, [300], ratio=1) is None


@pytest.mark.parametrize("ratio", [0.0, 0.001])
def test_a_tiny_ratio_trips_the_breaker_at_the_first_row_too_many(ratio):
    rows = [False] * 50 + [True] * 20
    assert feed(rows, [7], ratio) == 50 + int(ratio * 10_000)


@settings(max_examples=tries(25))
@given(
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 300)), max_size=12),
    st.lists(st.integers(1, 20_000), min_size=1, max_size=4),
)
def test_where_the_breaker_trips_does_not_depend_on_the_polls(runs, sizes):
    rows = [bad for good, num in runs for bad in [False] * good + [True] * num]
    assert feed(rows, sizes) == first_broken(rows)


def first_broken(rows):
    sums = [0]
    for bad in rows:
        sums.append(sums[-1] + bad)
    for i, bad in enumerate(rows):
        if bad and sums[i + 1] - sums[max(0, i - 9_999)] > 500:
            return i
    return None


def test_partitions_are_judged_apart():
    breaker = CircuitBreaker("s")
    breaker.see(0, 500, bad_rows([True] * 500))
    breaker.see(1, 500, bad_rows([True] * 500))
    with pytest.raises(TooManyBadRecords, match=r"s: 501 of the last 501 rows are bad, more than"):
        breaker.see(1, 1, bad_rows([True]))


def test_an_ended_partition_without_a_good_row_has_a_wrong_schema():
    breaker = CircuitBreaker("s")
    breaker.end(0)
    breaker.see(0, 20, bad_rows([True] * 20))
    with pytest.raises(TooManyBadRecords, match="20 of all rows are bad"):
        breaker.end(0)
    breaker.see(0, 1, [])
    with pytest.raises(TooManyBadRecords, match="20 of all 21 rows are bad, more than max_bad"):
        breaker.end(0)
    breaker.see(0, 379, [])
    breaker.end(0)  # 5 %


def test_the_message_is_escaped():
    breaker, row = CircuitBreaker("s", 0.0), BadRow(0, "type", "\x1b[2J" * 100, Origin({}, b""))
    with pytest.raises(TooManyBadRecords) as caught:
        breaker.see(0, 1, [row])
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_a_ratio_is_a_share():
    with pytest.raises(ValueError, match=r"max_bad_ratio must be in \[0, 1\], got 5"):
        CircuitBreaker("s", 5)
