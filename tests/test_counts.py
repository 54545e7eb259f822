"""`Count` and `Number` specify numbers of the past, which move with their batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.batches import made_batch
from helpers.made_models import made_events, made_model, made_plan
from tgflow.counts import LOOP, TICK, Count, evaluated, leaves, number, where
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.tables import FeatureTable

EVENTS = EventBatch(torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"of": "pears"}, "of must be one of pair, reverse, .*, got 'pears'"),
        (
            {"of": "pair", "clock": "days"},
            "clock must be one of seconds, events, source, got 'days'",
        ),
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
        with pytest.raises(TypeError, match=f"must be numbers such as .*, got a {name}"):
            number(wrong)
        with pytest.raises(TypeError, match=f"got a {name}"):
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


operations = st.sampled_from(["+", "-", "*", "/", ">=", "minimum", "maximum", "where"])
bases = st.sampled_from(
    [
        *(Count(of).num for of in ("pair", "reverse", "src", "dst", "all", "transition")),
        *(Count(of).age for of in ("pair", "dst", "src_as_dst")),
        Count("dst", half_life=5.0).decayed,
        LOOP,
        TICK,
        number(0.5),
    ]
)


def combined(operation, x, y):
    if operation in ("minimum", "maximum"):
        return getattr(x, operation)(y)
    if operation == "where":
        return where(x >= 1, y, 2.0)
    if operation == ">=":
        return x >= y
    return {"+": x + y, "-": x - y, "*": x * y, "/": x / (1 + y.maximum(0))}[operation]


numbers = st.recursive(
    bases, lambda inner: st.builds(combined, operations, inner, inner), max_leaves=6
) | bases.map(lambda x: x.maximum(0).log1p() - (-x.maximum(0)).exp() + (x + 2).log2())


@given(st.lists(numbers, min_size=1, max_size=4))
def test_evaluated_numbers_equal_those_of_a_batch(wanted):
    events = made_events(40)
    graph = TemporalGraph(edge_x=FeatureTable(2))
    graph.append(events)
    parts = leaves(wanted)
    asked = made_plan(made_model("counts"), graph, counts=[*parts, *wanted], batch_size=40)
    counts = asked.batch(0, 0).counts.view(-1, len(parts) + len(wanted)).numpy()
    values = {each: counts[:, i] for i, each in enumerate(parts)}
    values[TICK] = np.full(len(counts), graph.seconds_per_tick)
    found = evaluated(wanted, values)
    # libraries differ in the last bits of exp and log
    np.testing.assert_allclose(found, counts[:, len(parts) :], rtol=1e-12)


def test_leaves_are_the_distinct_numbers_of_pairs():
    pair = Count("pair")
    assert leaves([pair.num + 1, (pair.age * TICK).exp() * LOOP, pair.num]) == (
        pair.num,
        pair.age,
        LOOP,
    )
    assert leaves([number(2.0)]) == ()
    assert evaluated([], {TICK: np.ones(3)}).shape == (3, 0)
