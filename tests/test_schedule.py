"""Slices and ranks: every row has one slice, every slice one rank, and nobody asks anybody."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tgflow.peers import PARTS, WorldError
from tgflow.schedule import SliceSchedule, rows_of_slice


@st.composite
def schedules(draw):
    slices = draw(st.integers(1, 200))
    return SliceSchedule(slices, draw(st.integers(1, min(slices, PARTS))))


@given(schedule=schedules())
def test_each_slice_has_one_rank_and_each_rank_consecutive_slices(schedule):
    owned = [schedule.slices_of(rank) for rank in range(schedule.world)]
    assert [number for numbers in owned for number in numbers] == list(range(schedule.slices))
    for rank, numbers in enumerate(owned):
        assert {number * schedule.world // schedule.slices for number in numbers} == {rank}


@given(schedule=schedules())
def test_numbers_of_slices_differ_by_one(schedule):
    counts = [len(schedule.slices_of(rank)) for rank in range(schedule.world)]
    assert 1 <= min(counts) <= max(counts) <= min(counts) + 1


@given(slices=st.integers(1, 40), num_rows=st.integers(0, 500))
def test_slices_are_the_rows_in_order_and_sizes_differ_by_one(slices, num_rows):
    rows = [rows_of_slice(number, slices, num_rows) for number in range(slices)]
    assert [row for part in rows for row in part] == list(range(num_rows))
    sizes = [len(part) for part in rows]
    assert max(sizes) - min(sizes) <= 1


def test_more_ranks_than_slices_are_refused():
    text = "a batch has 2 slices, so at most 2 of 4 ranks can share it; start 2, or set slices=4"
    with pytest.raises(WorldError, match=text):
        SliceSchedule(2, 4)
    with pytest.raises(WorldError, match="a batch has 1 slice, so at most 1 of 2 ranks can"):
        SliceSchedule(1, 2)


def test_worlds_larger_than_the_parts_are_refused():
    with pytest.raises(WorldError, match="a world has 1 to 64 ranks, got 65"):
        SliceSchedule(100, 65)
    with pytest.raises(ValueError, match="slices must be at least 1, got 0"):
        SliceSchedule(0, 1)
