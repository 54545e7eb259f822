"""Every row read is accounted for; too many bad ones trip the circuit breaker."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from tgflow.streams.errors import TooManyBadRecords
from tgflow.streams.ingest.accounting import RowAccounting, sums
from tgflow.streams.ingest.admission import Admitted
from tgflow.streams.ingest.ordering import no_rows, ranks
from tgflow.streams.rows.row_batch import BadRow, Origin, RowBatch


def enter(accounting, partition, num_rows, *rejected, num_duplicates=0, **polled):
    """Record rows, with `rejected` as (index, code, place, text)."""
    bad = [BadRow(i, code, text, Origin(place, b"")) for i, code, place, text in rejected]
    batch = RowBatch(no_rows("int", 0), num_rows=num_rows, partition=partition, **polled)
    accounting.enter(batch, Admitted(bad, num_duplicates))


def counted():
    accounting = RowAccounting("s")
    late, bad = (0, "late", {"file": "a"}, "t is 3"), (1, "type", {"file": "a"}, "src is 'x'")
    enter(accounting, 0, 10, late, bad, num_duplicates=1)
    accounting.accept(ranks(0, np.arange(5)))
    for i in range(4):
        bad = (0, "type", {"offset": i}, f"bad {i}")
        enter(accounting, 1, 2, bad, counts={"tombstone": i}, gaps=[(i, 9)])
    return accounting


def test_counts_have_totals_locations_and_examples_and_resume_from_json():
    accounting = RowAccounting("s")
    changes = counted().changes()
    accounting.restore(json.loads(json.dumps(changes)))
    assert accounting.counts == counted().counts
    enter(accounting, 1, 1, (0, "type", {"offset": 7}, "\x1b[2J" + "x" * 500))
    enter(accounting, 2, 1, (0, "type", {"file": "\x1b[31m"}, "\x1b[2J" + "x" * 500))
    assert accounting.changes().keys() == {"1", "2"}
    totals = sums(accounting.counts, 2)
    assert [totals[name] for name in ("read", "malformed", "late", "buffered")] == [20, 7, 1, 2]
    assert totals["refused"] == {"type": 7, "late": 1}
    entry = accounting.counts["1"]
    assert (entry["other"], entry["gaps"]) == ({"tombstone": 6}, [[0, 9], [1, 9], [2, 9], [3, 9]])
    seen = entry["refused"]["type"]
    assert (seen["count"], seen["first"], seen["last"]) == (5, {"offset": 0}, {"offset": 7})
    assert seen["examples"] == ["bad 0", "bad 1", "bad 2"]
    escaped = accounting.counts["2"]["refused"]["type"]
    assert escaped["first"]["file"] == r"\x1b[31m"
    assert escaped["examples"][0].startswith(r"\x1b[2Jxx")
    assert len(escaped["examples"][0]) == 200
    assert sums(changes, 0)["malformed"] == 5  # what was returned has not changed since


def see(accounting, rows, partition=0):
    """Record rows, True for bad."""
    bad = [(i, "type", {}, "src is '\x1b[2J'") for i, bad in enumerate(rows) if bad]
    enter(accounting, partition, len(rows), *bad)


def feed(rows, sizes, ratio=0.05):
    """Feed rows in polls of `sizes`, through JSON each time; return where the breaker tripped.

    The row is found by feeding the tripping poll again row by row.
    """
    counts, start, i = {}, 0, 0
    while start < len(rows):
        part = rows[start : start + sizes[i % len(sizes)]]
        accounting = RowAccounting("s", ratio)
        accounting.restore(json.loads(json.dumps(counts)))
        try:
            see(accounting, part)
        except TooManyBadRecords:
            if len(part) == 1:
                return start
            sizes, i = [1], 0
            continue
        counts = accounting.counts
        start += len(part)
        i += 1
    return None


def test_breaker_trips_if_the_first_thousand_rows_are_bad():
    assert feed([True] * 999 + [False], [100], ratio=1) is None
    assert feed([True] * 1000, [300], ratio=1) == 999
    assert feed([False] + [True] * 5000, [300], ratio=1) is None


@pytest.mark.parametrize("ratio", [0.0, 0.001])
def test_breaker_trips_at_the_first_row_above_a_tiny_ratio(ratio):
    rows = [False] * 50 + [True] * 20
    assert feed(rows, [7], ratio) == 50 + int(ratio * 10_000)


@settings(max_examples=tries(25))
@given(
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 300)), max_size=12),
    st.lists(st.integers(1, 20_000), min_size=1, max_size=4),
)
def test_breaker_position_does_not_depend_on_poll_sizes(runs, sizes):
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


def test_bad_row_share_of_all_partitions_is_checked_at_the_end():
    accounting = RowAccounting("s", 0.05)
    accounting.check_share()
    see(accounting, [True] * 20)
    with pytest.raises(TooManyBadRecords, match=r"all 20 rows are bad.*20 of them by 'type' \(as "):
        accounting.check_share()
    see(accounting, [False])
    with pytest.raises(TooManyBadRecords, match="20 of 21 rows are bad, more than max_bad"):
        accounting.check_share()
    see(accounting, [False] * 379, partition=1)
    accounting.check_share()  # 5 %
    see(accounting, [True] * 500, partition=2)
    with pytest.raises(TooManyBadRecords, match="s: 501 of the last 501 rows are bad") as caught:
        see(accounting, [True], partition=2)
    assert str(caught.value).isprintable()
