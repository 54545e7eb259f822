"""Within a horizon batches are those of a new graph of the events that are left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.devices import for_each_device, opened
from helpers.effort import tries
from helpers.plans import assert_same_batch, each_variant, plan_of, tied_events
from helpers.strategies import begin_by_scan, event_lists, skewed_events
from tgflow import Batch, EventBatch, TemporalGraph
from tgflow.graph import EventLog, Horizon
from tgflow.graph.batch import Block
from tgflow.graph.counts import Count
from tgflow.graph.sampling import recent_neighbors
from tgflow.plan import NegativeSampler
from tgflow.plan.count_lookup import CountHistory, HeldCounts, LastEvents
from tgflow.plan.negatives import PairHistory

EVENTS, START, NUM = tied_events(400), 250, 7
EVERY_HORIZON = pytest.mark.parametrize(
    "horizon", [Horizon(events=160), Horizon(ticks=160), Horizon(250, 200)], ids=str
)


@given(event_lists(), st.none() | st.integers(16, 40), st.none() | st.integers(16, 90))
def test_horizon_is_a_function_of_the_log_and_the_position(events, num, ticks):
    graph, horizon = TemporalGraph.from_events(events), Horizon(num, ticks)
    begins = [horizon.begin(graph.log, p) for p in range(len(events) + 1)]
    t, at = events.t.tolist(), np.arange(len(events) + 1)
    assert begins == [begin_by_scan(t, horizon, p) for p in at.tolist()]
    assert begins == sorted(begins)
    assert horizon.begins(at, 0, events.t.numpy()).tolist() == begins


def shifted(batch: Batch, by: int) -> Batch:
    """The batch as of a log with `by` more events at its beginning."""

    def moved(eid: torch.Tensor) -> torch.Tensor:
        return torch.where(eid < 0, eid, eid + by)

    host = batch.host
    host = replace(host, eid=moved(host.eid), begin=host.begin + by, end=host.end + by)
    blocks: tuple[Block, ...] = tuple(replace(b, eid=moved(b.eid)) for b in batch.blocks)
    return replace(
        batch, eid=moved(batch.eid), position=batch.position + by, host=host, blocks=blocks
    )


@for_each_device
@each_variant
@EVERY_HORIZON
def test_batches_are_those_of_a_graph_of_the_later_events(
    device: str, variant: dict[str, Any], horizon: Horizon
) -> None:
    graph = TemporalGraph.from_events(EVENTS, device=opened(device), horizon=horizon)
    negatives = variant.get("negatives", NegativeSampler(random=1))
    negatives = replace(negatives, every=1)  # chosen by log positions
    of = {**variant, "start": START, "strategy": "uniform", "negatives": negatives}
    plan, seen = plan_of(graph, **of), set()
    for index in range(NUM):
        begin = graph.since(START + 10 * index)
        seen.add(begin)
        rest = TemporalGraph.from_events(EVENTS[begin:], device=opened(device))
        own = negatives
        if negatives.since is not None:
            own = replace(negatives, since=max(0, negatives.since - begin))
        expected = plan_of(rest, **of | {"negatives": own, "start": START - begin}).batch(0, index)
        assert_same_batch(replace(plan.batch(0, index), since=None), shifted(expected, begin))
    assert len(seen) > 3


@for_each_device
@pytest.mark.parametrize("forgets_at", [0, 3, 5], ids=str)
def test_forgetting_changes_no_batch(
    device: str, forgets_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the memory is freed, and in a graph that begins later."""
    monkeypatch.setattr(EventLog, "piece", 1)
    horizon, events = Horizon(160, 160), tied_events(400, x_dim=0)
    options: dict[str, Any] = {"start": START}

    def graph_from(first: int) -> TemporalGraph:
        graph = TemporalGraph(horizon=horizon, device=opened(device), first=first)
        graph.append(events[first:])
        return graph

    whole, graph = graph_from(0), graph_from(0)
    expected, plan = plan_of(whole, **options), plan_of(graph, **options)
    for index in range(NUM):
        if index == forgets_at:
            graph.forget(first := graph.since(START + 10 * index))
        assert_same_batch(plan.batch(0, index), expected.batch(0, index))
    later = plan_of(graph_from(first), **options)
    assert_same_batch(later.batch(0, NUM - 1), expected.batch(0, NUM - 1))
    assert graph.stats().num_entries < whole.stats().num_entries
    with pytest.raises(IndexError, match=rf"the log holds events \[{first}, 400\), got \[0, 5\)"):
        graph.log.read(0, 5)
    with pytest.raises(IndexError, match="is not in the log"):
        graph.log.gather(torch.tensor([first - 1]))


@for_each_device
@EVERY_HORIZON
def test_forgetting_changes_no_batch_of_a_graph_whose_past_changes(
    device: str, horizon: Horizon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With late events, some of them before the horizon, and deleted ones."""
    monkeypatch.setattr(EventLog, "piece", 1)
    events, options = tied_events(400, x_dim=0), {"start": START, "counts": (), "fanouts": (3, 2)}

    def graph_of(*, forgets: bool) -> TemporalGraph:
        graph = TemporalGraph(horizon=horizon, device=opened(device))
        for start in range(0, START, 50):
            graph.append(events[start : start + 40])
            late = events[start + 40 : start + 50]
            first = graph.append(replace(late, t=late.t - 60), allow_late=True)
            graph.delete(torch.tensor([first + 1, *range(first - 9, first, 4)]))
            if forgets:
                graph.forget_outside(graph.num_events)
        graph.append(events[START:])
        return graph

    whole, graph = graph_of(forgets=False), graph_of(forgets=True)
    graph.forget(first := whole.since(START))
    assert first > 0
    expected, plan = plan_of(whole, **options), plan_of(graph, **options)
    for index in range(NUM):
        assert_same_batch(plan.batch(0, index), expected.batch(0, index))
        graph.forget_outside(START + 10 * (index + 1))


@for_each_device
def test_relations_of_forgotten_events_are_freed(device: str, monkeypatch: Any) -> None:
    """And a graph that begins later has none of earlier events."""
    monkeypatch.setattr(EventLog, "piece", 1)
    events = tied_events(2_000, x_dim=0)
    events = replace(events, relation=torch.arange(len(events)) % 4)
    options: dict[str, Any] = {"horizon": Horizon(160), "device": opened(device)}
    whole, graph = TemporalGraph(**options), TemporalGraph(**options)
    whole.append(events)
    for start in range(0, len(events), 100):
        graph.append(events[start : start + 100])
        graph.forget_outside(graph.num_events)
    later = TemporalGraph(**options, first=graph.forgotten)
    later.append(events[graph.forgotten :])
    nodes = torch.arange(30, device=graph.device)
    t = (events.t[-1:] + 1).expand(30).contiguous().to(graph.device)
    asked: dict[str, Any] = {"since": graph.forgotten, "relations": (1, 3)}
    found = [
        recent_neighbors(each, nodes, t, 9, **asked).eid.cpu() for each in (whole, graph, later)
    ]
    kept = found[0][found[0] >= 0]
    assert ((kept >= graph.forgotten) & (kept % 2 == 1)).all()
    assert len(kept) > 100
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    if graph.gpu is not None:
        most = max(len(each.backend._store._relations) for each in (graph, later))
        assert most < 2 * 2 * 170 < len(whole.backend._store._relations)


OF_NODES_AND_PAIRS = [Count(of) for of in ("pair", "reverse", "src", "dst", "src_as_dst", "all")]
ANSWERS = [each for of in OF_NODES_AND_PAIRS for each in (of.num, of.age, of.within(3))]
ANSWERS += [Count("pair").rank, Count("dst").rank]


@settings(max_examples=tries(30), deadline=None)
@given(
    events=st.one_of(
        event_lists(max_events=60, max_node=2),
        event_lists(max_events=60, max_node=6),
        st.builds(skewed_events, st.just(700), st.just(80), seed=st.integers(0, 9)),
    ),
    span=st.sampled_from([4, HeldCounts.span]),
    data=st.data(),
)
def test_answers_from_any_position_on_are_those_of_the_later_events(
    events: EventBatch, span: int, data: st.DataObject
) -> None:
    """Of one index and one set of lists, while events are appended and forgotten."""
    graph, most = TemporalGraph(), max(1, len(events) // 5)
    counts, pairs, last = (
        CountHistory(graph, ANSWERS),
        PairHistory(graph.log),
        LastEvents(graph.log),
    )
    kept, begin, since, end = counts.native, 0, 0, 0
    with patch.object(HeldCounts, "span", span):
        while end < len(events):
            begin, end = end, min(end + data.draw(st.integers(1, most)), len(events))
            graph.append(events[begin:end])
            since = data.draw(st.integers(since, begin), label="since")
            rest = TemporalGraph.from_events(events[since:end])
            alone = PairHistory(rest.log)
            src, dst = torch.cartesian_prod(torch.arange(7), torch.arange(7)).unbind(1)
            cut = torch.randint(since, end + 1, src.shape)
            asked = EventBatch(src, dst, events.t[end - 1 : end].expand_as(src) + 1)
            none, stop = src.new_empty(len(src), 0), end - since
            found = counts.at(since).answer(asked, None, none, limit=cut, stop=end)
            own = CountHistory(rest, ANSWERS)
            expected = own.answer(asked, None, none, limit=cut - since, stop=stop)
            assert torch.equal(found, expected)
            assert span == 4 or counts.at(since).native is kept
            index = pairs.at(since).upto(end, pairs=True)
            alone.upto(stop, pairs=True)
            assert index.native.num_pairs(end) == alone.native.num_pairs(stop)
            assert torch.equal(
                index.first_meetings(begin, end), alone.first_meetings(begin - since, stop)
            )
            assert torch.equal(index.destinations(end), alone.destinations(stop))
            latest = index.latest_destinations(src, cut, 3, 4)
            for one, other in zip(
                latest, alone.latest_destinations(src, cut - since, 3, 4), strict=True
            ):
                assert torch.equal(one, other)
            eids = last.before(src, dst, cut, 5, since)
            moved = LastEvents(rest.log).before(src, dst, cut - since, 5)
            assert torch.equal(eids, torch.where(moved < 0, moved, moved + since))
            if data.draw(st.booleans(), label="forgets"):
                graph.forget(since)
