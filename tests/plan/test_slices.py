"""Slices of a batch: together the batch, each blind to the future, and the same whoever asks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from helpers.effort import cases
from helpers.plan_reference import assert_same_events
from helpers.plan_variants import each_variant, made_events, plan_of
from tgflow.batch import Share
from tgflow.counts import Count
from tgflow.graph import TemporalGraph

COUNTS = (Count("pair"), Count("dst", half_life=30.0))


@each_variant
@pytest.mark.parametrize("slices", cases([2, 3, 7], [3]))
def test_slices_are_the_batch_cut(variant: dict[str, Any], slices: int) -> None:
    """Events, replayed ones too, negatives and counts: each row is in one slice, in order."""
    graph = TemporalGraph.from_events(made_events(97))
    whole_plan = plan_of(graph, **variant, counts=COUNTS)
    plan = plan_of(graph, **variant, counts=COUNTS, slices=slices)
    for index in range(len(plan)):
        whole, share = whole_plan.batch(1, index), plan.share(1, index, range(slices))
        assert_same_events(share.host, whole.host)
        assert (len(share), share.num_new) == (len(whole), whole.num_new)
        assert share.num_fallbacks == whole.num_fallbacks
        for number, each in enumerate(share.slices):
            rows, new = share.rows_of(number), share.new_rows_of(number)
            cut = slice(rows.start, rows.stop)
            for name in ("eid", "src", "dst", "t", "x", "negative_src", "negative_dst"):
                assert torch.equal(getattr(each, name), getattr(whole, name)[cut]), name
            for found, expected in zip(each.counts, whole.counts, strict=True):
                for one, other in zip(found, expected, strict=True):
                    assert (one is other is None) or torch.equal(one, other[cut])
            assert len(rows) in (len(whole) // slices, -(-len(whole) // slices))
            assert (len(new), new.stop <= whole.num_new) == (each.num_new, True)
            assert (each.host.begin, each.host.end) == (whole.host.begin, whole.host.end)
        assert sum(map(len, share.slices)) == len(whole)


def test_a_batch_with_fewer_rows_than_slices_has_slices_without_rows() -> None:
    plan = plan_of(TemporalGraph.from_events(made_events(22)), slices=5, counts=COUNTS)
    share = plan.share(0, 2, range(5))
    assert [len(each) for each in share.slices] == [0, 0, 1, 0, 1]
    assert [number for number, _ in share.computed()] == [2, 4]
    assert (len(share), share.num_new) == (2, 2)
    alone = plan.share(0, 2, range(2))
    assert (len(alone), alone.num_new) == (2, 2)
    assert [(number, len(each)) for number, each in alone.computed()] == [(0, 0)]
    assert alone.host.eid.tolist() == [20, 21]


def test_what_is_no_slice_is_refused() -> None:
    plan = plan_of(TemporalGraph.from_events(made_events(60)), slices=2)
    with pytest.raises(IndexError, match="there is no slice 2; a batch has 2"):
        plan.share(0, 0, range(3))
    with pytest.raises(IndexError, match="there is no batch 9"):
        plan.share(0, 9, range(2))
    with pytest.raises(ValueError, match="slices must be at least 1, got 0"):
        plan_of(TemporalGraph(), slices=0)
    with pytest.raises(ValueError, match="at least one slice, got none"):
        plan.share(0, 0, range(0))
    first, second = plan.share(0, 0, range(2)).slices
    with pytest.raises(ValueError, match=r"next to each other; .* \(0, 0, 1\), \(0, 0, 0\)"):
        Share.of([second, first])
    with pytest.raises(ValueError, match="slices of one batch"):
        Share.of([first, plan.batch(0, 1, 1)])
    with pytest.raises(ValueError, match="slices of one batch"):
        Share.of([plan.batch(0, 0), plan.batch(0, 1)])
