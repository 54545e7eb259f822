"""Slices and ranks: every row has one slice, and every slice one rank."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tgflow.peers import PARTS, WorldError
from tgflow.schedule import SliceSchedule, rows_of_slice


@given(data=st.data(), slices=st.integers(1, 200))
def test_each_slice_has_one_rank_and_each_rank_as_many_consecutive_slices(data, slices):
    schedule = SliceSchedule(slices, data.draw(st.integers(1, min(slices, PARTS))))
    owned = [schedule.slices_of(rank) for rank in range(schedule.world)]
    assert [number for numbers in owned for number in numbers] == list(range(slices))
    for rank, numbers in enumerate(owned):
        assert {number * schedule.world // slices for number in numbers} == {rank}
    counts = [len(numbers) for numbers in owned]
    assert 1 <= min(counts) <= max(counts) == schedule.most <= min(counts) + 1


@given(slices=st.integers(1, 40), num_rows=st.integers(0, 500))
def test_slices_are_the_rows_in_order_and_sizes_differ_by_one(slices, num_rows):
    rows = [rows_of_slice(number, slices, num_rows) for number in range(slices)]
    assert [row for part in rows for row in part] == list(range(num_rows))
    sizes = [len(part) for part in rows]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("slices", "world", "text"),
    [
        (2, 4, "a batch has 2 slices, so at most 2 of 4 ranks can share it; start 2, or set "
         "slices=4"),
        (1, 2, "a batch has 1 slice, so at most 1 of 2 ranks can"),
        (100, 65, "a world has 1 to 64 ranks, got 65"),
    ],
)  # fmt: skip
def test_invalid_worlds_are_refused(slices, world, text):
    with pytest.raises(WorldError, match=text):
        SliceSchedule(slices, world)
    with pytest.raises(ValueError, match="slices must be at least 1, got 0"):
        SliceSchedule(0, world)
