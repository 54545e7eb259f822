"""The plan matches a slow reference, is pure in any order and reads no future events."""

from __future__ import annotations

import gc
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.effort import cases
from helpers.plans import (
    assert_batch_rows,
    assert_same_batch,
    assert_same_events,
    each_variant,
    expected_rows,
    plans,
    recent_plan,
    spec_of,
    tied_events,
)
from tgflow.graph import TemporalGraph
from tgflow.graph.batch import Batch, Share
from tgflow.graph.counts import Count
from tgflow.graph.events import EventBatch, concat
from tgflow.plan.loader import Loader


@given(plans(), st.integers(1, 5))
def test_batches_and_slices_match_the_reference(
    made: tuple[EventBatch, dict[str, Any]], slices: int
) -> None:
    events, changes = made
    plan = recent_plan(TemporalGraph.from_events(events, time_unit="ns"), **changes, slices=slices)
    for index in range(len(plan)):
        whole, new = plan.batch(0, index), range(*plan.draws.span(index))
        assert whole.eid[: whole.num_new].tolist() == [*new], "replay takes no new event's place"
        assert (whole.eid[whole.num_new :] < new.start).all()
        for batch in (whole, *share_of(plan, 0, index, range(slices)).slices):
            assert_batch_rows(batch, expected_rows(events, batch, spec_of(plan)))
            assert_columns(batch, events)


def share_of(plan, epoch, index, wanted):
    return Share.of([plan.batch(epoch, index, number) for number in wanted])


def assert_columns(batch: Batch, events: EventBatch) -> None:
    """Fail unless columns and features match the events."""
    for name in ("src", "dst", "t"):
        assert torch.equal(getattr(batch, name), getattr(events, name)[batch.eid])
    if events.x is None:
        assert batch.x is None
        return
    assert batch.x is not None
    assert torch.equal(batch.x, events.x[batch.eid])
    for block in batch.blocks:
        expected = events.x[block.eid.clamp(min=0)] * block.mask.unsqueeze(-1)
        assert block.edge_x is not None
        assert torch.equal(block.edge_x, expected)


def test_batch_matches_a_hand_computed_example() -> None:
    """0-1 at 10, 0-2 at 20, 0-1 at 20: batch 1 sees both earlier events, its own tie never."""
    events = EventBatch(
        torch.tensor([0, 0, 0]), torch.tensor([1, 2, 1]), torch.tensor([10, 20, 20])
    )
    plan = recent_plan(TemporalGraph.from_events(events, time_unit="m"), batch_size=1)
    batch = plan.batch(0, 2)
    assert batch.negative_dst.tolist() == [[2]]
    assert (batch.src_row.tolist(), batch.dst_row.tolist()) == ([0], [1])
    assert batch.negative_dst_row.tolist() == [[2]]
    (block,) = batch.blocks
    assert block.eid.tolist() == [[0, -1, -1], [0, -1, -1], [-1, -1, -1]]
    assert block.dt.tolist() == [[600, 0, 0], [600, 0, 0], [0, 0, 0]]
    assert batch.nodes.tolist() == [0, 1, 2]
    assert batch.position.tolist() == [2, 2, 2]
    assert block.target.tolist() == [0, 1, 2]
    assert block.neighbor.tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]


@each_variant
def test_batches_do_not_read_future_events(variant: dict[str, Any]) -> None:
    """Every batch is the same whether or not the log continues after it."""
    events = tied_events(120)
    size = recent_plan(TemporalGraph(), **variant).batch_size
    start = variant.get("start", 0)
    whole = recent_plan(TemporalGraph.from_events(events), **variant)
    other = tied_events(60, seed=1)
    for index in range((120 - start) // size):
        end = start + (index + 1) * size
        short = recent_plan(TemporalGraph.from_events(events[:end]), **variant)
        batch = short.batch(0, index)
        assert_same_batch(batch, whole.batch(0, index))
        late = EventBatch(other.src, other.dst, events.t[end - 1].expand(60).contiguous(), other.x)
        graph = TemporalGraph.from_events(concat([events[:end], late]))
        assert_same_batch(batch, recent_plan(graph, **variant).batch(0, index))


@each_variant
def test_batches_planned_during_appends_are_the_same(variant: dict[str, Any]) -> None:
    events = tied_events(600)
    expected = recent_plan(TemporalGraph.from_events(events), **variant)
    graph = TemporalGraph(edge_x_dim=3)
    plan = recent_plan(graph, **variant)

    def append() -> None:
        for begin in range(0, 600, 10):
            graph.append(events[begin : begin + 10])

    with ThreadPoolExecutor(3) as pool:
        appending = pool.submit(append)
        for index in range((600 - plan.draws.start) // 10):
            while graph.num_events < plan.draws.start + (index + 1) * 10:
                assert not appending.done() or appending.result() is None
                time.sleep(0)
            for batch in pool.map(lambda i: plan.batch(0, i), [index, index // 2]):
                assert_same_batch(batch, expected.batch(0, batch.index))
        appending.result()


def test_growing_plan_counts_batches_of_appended_events() -> None:
    events = tied_events(25)
    graph = TemporalGraph(edge_x_dim=3)
    plan = recent_plan(graph, visibility="batch")
    assert len(plan) == 0
    for begin, end, expected in ((0, 1, 1), (1, 10, 1), (10, 25, 3)):
        graph.append(events[begin:end])
        assert len(plan) == expected
    assert [len(plan.batch(0, index)) for index in range(3)] == [10, 10, 5]
    assert len(recent_plan(graph, start=4, stop=20)) == 2
    assert recent_plan(graph, start=4, stop=20).draws.span(1) == (14, 20)
    assert len(recent_plan(graph, start=30)) == 0


def test_batch_index_out_of_range_is_an_error() -> None:
    plan = recent_plan(TemporalGraph.from_events(tied_events(25)))
    for index in (-1, 3):
        with pytest.raises(IndexError, match=f"no batch {index}; the plan has 3 batches"):
            plan.batch(0, index)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1 event, got 0"),
        ({"fanouts": (3, 0)}, r"at least 1 neighbor each, got \(3, 0\)"),
        ({"strategy": "last"}, "window, decayed, got 'last'"),
        ({"strategy": "window"}, "strategy window needs a span: its width"),
        ({"span": 5}, "strategy recent takes no span, got 5"),
        ({"visibility": "all"}, "event or batch, got 'all'"),
        ({"with_nodes": False}, r"fanouts are neighbors of nodes, got \(3,\)"),
        ({"start": -1}, "got start=-1"),
        ({"start": 5, "stop": 4}, "got start=5, stop=4"),
    ],
)
def test_invalid_plans_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recent_plan(TemporalGraph(), **changes)


def test_moving_a_batch_copies_shared_tensors_once() -> None:
    batch = recent_plan(TemporalGraph.from_events(tied_events(60)), fanouts=(3, 2)).batch(0, 4)
    assert_same_batch(batch.to("cpu"), batch)
    there = batch.to("meta")
    tensors = [there.eid, there.x, there.src_row, there.nodes, there.blocks[1].mask]
    assert all(tensor is not None and tensor.device.type == "meta" for tensor in tensors)
    assert there.blocks[0].edge_table is there.blocks[1].edge_table
    assert (there.epoch, there.num_new) == (batch.epoch, batch.num_new)
    assert there.host is batch.host


def test_graph_is_freed_with_its_last_reference() -> None:
    graph = TemporalGraph.from_events(tied_events(100))
    plan = recent_plan(graph)
    list(Loader(plan))
    gone = weakref.ref(graph)
    gc.disable()
    try:
        del graph, plan
        assert gone() is None
    finally:
        gc.enable()


COUNTS = (Count("pair").age, Count("dst", half_life=30.0).decayed)


@each_variant
@pytest.mark.parametrize("slices", cases([2, 3, 7], [3]))
def test_slices_match_the_batch(variant: dict[str, Any], slices: int) -> None:
    """Events, replayed ones too, negatives and counts: each row is in one slice, in order."""
    graph = TemporalGraph.from_events(tied_events(97))
    whole_plan = recent_plan(graph, **variant, counts=COUNTS)
    plan = recent_plan(graph, **variant, counts=COUNTS, slices=slices)
    for index in range(len(plan)):
        whole, share = whole_plan.batch(1, index), share_of(plan, 1, index, range(slices))
        assert_same_events(share.host, whole.host)
        assert (len(share), share.num_new) == (len(whole), whole.num_new)
        assert share.num_fallbacks == whole.num_fallbacks
        for number, each in enumerate(share.slices):
            rows, new = share.rows_of([number]), share.new_rows_of(number)
            for name in ("eid", "src", "dst", "t", "x", "negative_src", "negative_dst", "counts"):
                assert torch.equal(getattr(each, name), getattr(whole, name)[rows]), name
            assert rows[: each.num_new].tolist() == [*new]
            assert bool((rows[each.num_new :] >= whole.num_new).all())
            assert (each.host.begin, each.host.end) == (whole.host.begin, whole.host.end)
        assert share.rows_of(range(slices)).sort().values.tolist() == [*range(len(whole))]


def test_batch_with_fewer_rows_than_slices_has_empty_slices() -> None:
    plan = recent_plan(TemporalGraph.from_events(tied_events(22)), slices=5, counts=COUNTS)
    share = share_of(plan, 0, 2, range(5))
    assert [len(each) for each in share.slices] == [0, 0, 1, 0, 1]
    assert [number for number, _ in share.computed()] == [2, 4]
    assert (len(share), share.num_new) == (2, 2)
    alone = share_of(plan, 0, 2, range(2))
    assert (len(alone), alone.num_new) == (2, 2)
    assert [(number, len(each)) for number, each in alone.computed()] == [(0, 0)]
    assert alone.host.eid.tolist() == [20, 21]


def test_invalid_slice_is_refused() -> None:
    plan = recent_plan(TemporalGraph.from_events(tied_events(60)), slices=2)
    with pytest.raises(IndexError, match="slice 2 is out of range; a batch has 2"):
        share_of(plan, 0, 0, range(3))
    with pytest.raises(IndexError, match="there is no batch 9"):
        share_of(plan, 0, 9, range(2))
    with pytest.raises(ValueError, match="slices must be at least 1, got 0"):
        recent_plan(TemporalGraph(), slices=0)
    with pytest.raises(ValueError, match="at least one slice, got none"):
        share_of(plan, 0, 0, range(0))
    first, second = share_of(plan, 0, 0, range(2)).slices
    with pytest.raises(ValueError, match=r"next to each other; .* \(0, 0, 1\), \(0, 0, 0\)"):
        Share.of([second, first])
    with pytest.raises(ValueError, match="slices of one batch"):
        Share.of([first, plan.batch(0, 1, 1)])
    with pytest.raises(ValueError, match="slices of one batch"):
        Share.of([plan.batch(0, 0), plan.batch(0, 1)])
