"""`Count` specifies a query of past events, and `Counts` move with their batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from helpers.batches import made_batch
from tgflow.counts import Count, Counts
from tgflow.events import EventBatch

EVENTS = EventBatch(torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"of": "pears"}, "of must be one of pair, reverse, .*, got 'pears'"),
        ({"of": "pair", "clock": "days"}, "clock must be one of seconds, events, got 'days'"),
        ({"of": "window", "depth": 0}, "depth must be from 1 to 64, got 0"),
        ({"of": "window", "depth": 65}, "depth must be from 1 to 64, got 65"),
        ({"of": "pair", "depth": 2}, "depth is for transition, .*, not for pair"),
        ({"of": "pair", "half_life": 0.0}, "half_life must be from 1e-9 to 1e18, got 0.0"),
        ({"of": "pair", "half_life": float("nan")}, "got nan"),
        ({"of": "pair", "clock": "events"}, "is for a half_life, which is None"),
    ],
)
def test_invalid_count_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Count(**settings)


def test_counts_are_copied_with_their_batch():
    num, age = torch.arange(6).view(2, 3), torch.full((2, 3), 7)
    sums = torch.ones(2, 3, dtype=torch.float64)
    batch = replace(
        made_batch(EVENTS, 0, 2, [1]), counts=(Counts(num, age, sums), Counts(age, num, None))
    )
    assert {id(num), id(age), id(sums)} <= {id(column) for column in batch.tensors()}
    there = batch.to("meta")
    assert all(column.is_meta for counts in there.counts for column in counts if column is not None)
    [first, second] = batch.map(torch.clone).counts
    assert first.num is not num
    for copy, column in zip([*first, *second], [num, age, sums, age, num, None], strict=True):
        assert copy is None if column is None else copy.equal(column)
