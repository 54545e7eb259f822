"""`Count` and `Number` specify numbers of the past, which move with their batch."""

from dataclasses import replace

import pytest
import torch

from helpers.plans import made_batch
from tgflow.graph.counts import LOOP, Count, number
from tgflow.graph.events import EventBatch

EVENTS = EventBatch(torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"of": "pears"}, "of must be one of pair, reverse, .*, got 'pears'"),
        ({"of": "pair", "clock": "days"}, "clock must be one of seconds, .*, got 'days'"),
        ({"of": "window", "depth": 0}, "depth must be from 1 to 64, got 0"),
        ({"of": "window", "depth": 65}, "depth must be from 1 to 64, got 65"),
        ({"of": "pair", "depth": 2}, "depth is for transition, .*, not for pair"),
        ({"of": "pair", "half_life": 0.0}, "half_life must be from 1e-9 to 1e18, got 0.0"),
        ({"of": "pair", "half_life": float("nan")}, "got nan"),
        ({"of": "pair", "clock": "events"}, "is for a half_life, which is None"),
        ({"of": "dst", "clock": "source", "half_life": 1.0}, 'clock="source" is for pair, src'),
        ({"of": "covisit", "depth": 33}, "from 1 to 32, got 33"),
    ],
)
def test_invalid_count_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Count(**settings)


def test_counts_are_copied_with_their_batch():
    counts = torch.arange(6, dtype=torch.float64).view(2, 3, 1)
    batch = replace(made_batch(EVENTS, 0, 2, [1]), counts=counts)
    assert id(counts) in {id(column) for column in batch.tensors()}
    assert batch.to("meta").counts.is_meta
    copy = batch.map(torch.clone).counts
    assert copy is not counts
    assert copy.equal(counts)


def test_numbers_have_no_value_before_a_batch():
    with pytest.raises(TypeError, match="a Number has no value before a batch is made"):
        0 <= Count("pair").age <= 5  # noqa: B015


def test_numbers_of_other_types_are_refused():
    for wrong, name in ((Count("pair"), "Count"), ("pair", "str"), (None, "NoneType")):
        with pytest.raises(TypeError, match=f"must be numbers such as .*, got {name}"):
            number(wrong)
        with pytest.raises(TypeError, match=f"got {name}"):
            LOOP + wrong


def test_numbers_that_a_count_does_not_have_are_refused():
    with pytest.raises(ValueError, match="the weights of pair do not decay: give a half_life"):
        _ = Count("pair").decayed
    with pytest.raises(ValueError, match="pair and dst have a rank, src has none"):
        _ = Count("src").rank
    with pytest.raises(ValueError, match=r"since is for pair, src, .*, not for dst"):
        _ = Count("dst").since


def test_equal_numbers_are_equal_and_hashed_alike():
    one, other = (1 / (1 + Count("pair").num.log()) for _ in range(2))
    assert (one, hash(one)) == (other, hash(other))
    assert one != 1 / (1 + Count("dst").num.log())
