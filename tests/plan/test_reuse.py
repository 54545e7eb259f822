"""Rows reused from earlier batches: selection, correctness, and purity of plans."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.devices import for_each_gpu, opened
from helpers.effort import cases, tries
from helpers.made_streams import made_events
from helpers.plans import assert_on, assert_same_batch, plan_of
from tgflow.graph import TemporalGraph
from tgflow.graph.batch import Batch, Block
from tgflow.graph.tables import FeatureTable
from tgflow.plan import Loader, Plan, reuse
from tgflow.plan._native import ReuseMap, padded_rows
from tgflow.plan.reuse import BatchReuse, HopReuse, ReuseProgress, ReusingPlan, Walk

EVENTS = made_events(300)
HOW = {"strategy": "recent", "with_memory": False, "counts": ()}


def recent_plan(graph: TemporalGraph | None = None, **changes: object) -> Plan:
    graph = TemporalGraph.from_events(EVENTS) if graph is None else graph
    return plan_of(graph, **HOW | changes)


def reusing(plan: Plan, staleness: int = 4, *, pads: bool = False) -> ReusingPlan:
    """The plan, with rows reused at all hops below the first."""
    none = torch.empty(0, dtype=torch.int64)
    hops = [
        HopReuse(plan, hop, staleness, 0.3, 100_000, pads, ReuseProgress(), (none,) * 4)
        for hop in range(1, len(plan.draws.fanouts))
    ]
    return ReusingPlan(plan, hops)


def tasks_of(source: ReusingPlan, num_threads: int = 0) -> Iterator[tuple[int, int, BatchReuse]]:
    """All planned tasks of an epoch."""
    return source.tasks(((0, index) for index in range(len(source))), num_threads)


def batches_of(source: ReusingPlan, num_threads: int = 0, **loader: Any) -> Iterator[Batch]:
    """All batches of an epoch."""
    tasks = tasks_of(source, num_threads)
    return iter(Loader.of_tasks(source, tasks, num_threads=num_threads, **loader))


def asked_of(plan: Plan, index: int, epoch: int = 0) -> list[tuple[int, int]]:
    """The (node, time) of each row queried by the second hop of a batch."""
    asked = Walk(plan, epoch, index).asked
    return list(zip(asked.nodes.tolist(), asked.t.tolist(), strict=True))


def rows_of(block: Block, at: int) -> tuple[list[int], list[float]]:
    """Inputs of a row: the events of its neighbors, and their ages."""
    return block.eid[at].tolist(), block.dt[at].tolist()


class Reference:
    """Reference of reusable rows by a dict; it observes which are refreshed."""

    def __init__(self, plan: Plan, staleness: int, past_changes: bool = False) -> None:
        self.plan, self.staleness, self.past_changes = plan, staleness, past_changes
        self.made: dict[tuple[int, int], tuple[int, object]] = {}
        self.num_reused = 0

    def check(self, batch: Batch) -> None:
        number, whole = batch.index, self.plan.batch(batch.epoch, batch.index)
        asked = asked_of(self.plan, number, batch.epoch)
        upper, lower = batch.blocks
        reused, content = lower.reused, whole.blocks[1]
        assert reused is not None
        # where each row of the whole batch is now
        place = {}
        for old, new in zip(whole.blocks[0].target.tolist(), upper.target.tolist(), strict=True):
            place[old] = new
        mask = upper.mask
        assert torch.equal(mask, whole.blocks[0].mask)
        for old, new in zip(whole.blocks[0].neighbor[mask], upper.neighbor[mask], strict=True):
            assert place.setdefault(int(old), int(new)) == int(new)
        assert sorted(place.values()) == list(range(len(asked)))
        size = len(lower.target)
        assert len(reused.slot) == len(asked) - size
        limit = batch.host.end if self.plan.draws.sees_all_before else batch.host.begin
        reached = self.plan.graph.log.read(0, limit).t[-1:].tolist()
        for row, query in enumerate(asked):
            at = place[row]
            may_recur = bool(reached) and query[1] <= reached[0]
            last = self.made.get(query)
            is_there = last is not None and last[0] >= number - self.staleness
            if at >= size:
                assert may_recur
                assert is_there
                assert last is not None
                assert last[1] == rows_of(content, row), "the row is made of something else now"
                self.num_reused += 1
                continue
            assert rows_of(lower, at) == rows_of(content, row)
            nodes = whole.nodes[content.neighbor[row]], batch.nodes[lower.neighbor[at]]
            assert torch.equal(*(each[content.mask[row]] for each in nodes))
            assert whole.nodes[content.target[row]] == batch.nodes[lower.target[at]]
            weights = [1 / 0.3] if is_there and may_recur else [1.0]
            weights += [1.0] if self.past_changes else []
            assert any(float(reused.weight[at]) == pytest.approx(each) for each in weights)
            assert (at < len(reused.stored)) == may_recur
            if may_recur:
                self.made[query] = (number, rows_of(content, row))


@settings(max_examples=tries(100, 5), deadline=None)
@given(
    staleness=st.integers(1, 9),
    visibility=st.sampled_from(["event", "batch"]),
    noise=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 99),
    acts=st.none()
    | st.lists(st.sampled_from(["late", "delete", "retain", "compact", ""]), max_size=12),
)
def test_reused_rows_match_a_reference(staleness, visibility, noise, seed, acts):
    """Late events, deletions, retention and compaction drop rows; `check` detects stale ones."""
    events = made_events(160, noise=noise, seed=seed)
    graph = TemporalGraph(edge_x=FeatureTable(2))
    graph.append(events[:120])
    if acts is not None:
        graph.append(made_events(4, seed=7), allow_late=True)  # met at their position
    graph.append(events[120:])
    plan = recent_plan(graph, visibility=visibility, batch_size=12, stop=160)
    reference = Reference(plan, staleness, past_changes=acts is not None)
    for number, batch in enumerate(batches_of(reusing(plan, staleness), lookahead=1)):
        reference.check(batch)
        act = acts[number] if acts is not None and number < len(acts) else ""
        if act == "late":
            graph.append(made_events(3, seed=number), allow_late=True)
        elif act == "delete":
            graph.delete(torch.tensor([5 * number]))
        elif act == "retain":
            graph.retain(max_count=6)
        elif act == "compact":
            graph.compact()
    assert reference.num_reused > 0 or any(acts or ())


def test_reuse_is_disabled_if_few_nodes_recur():
    events = made_events(1_600)
    events.src[:], events.dst[:] = torch.arange(3_200).view(2, -1)  # no pair repeats
    plan = recent_plan(TemporalGraph.from_events(events), batch_size=20)
    source = reusing(plan, 1)
    batches = list(batches_of(source, 2))
    is_on = [batch.blocks[1].reused is not None for batch in batches]
    assert is_on == [number < reuse.WINDOW for number in range(len(batches))]
    for index in (reuse.WINDOW, len(plan) - 1):
        assert_same_batch(batches[index], plan.batch(0, index))


def test_gradient_of_refreshed_rows_is_unbiased():
    """The mean of 10,000 draws of a linear model's gradient is that of all rows."""
    generator = torch.Generator().manual_seed(1)
    x, size, share = torch.randn(20, 3, generator=generator), 20, 0.2
    nodes, may = torch.arange(size), torch.ones(size, dtype=torch.bool)
    order, slot = torch.empty(2, size, dtype=torch.int64)
    row_map, total = ReuseMap(size), torch.zeros(3)
    held = (torch.zeros(size, dtype=torch.int64), nodes, nodes, nodes)
    for draw in range(10_000):
        row_map.restore(*held)
        refreshed, *_ = row_map.decide(1, nodes, nodes, may, 1, share, draw, 1.0, order, slot)
        total += x[order[:refreshed]].sum(0) / share
    deviation = (x.square().sum(0) * (1 - share) / share / 10_000).sqrt()
    assert ((total / 10_000 - x.sum(0)).abs() < 4 * deviation).all()


@for_each_gpu
@pytest.mark.parametrize("visibility", cases(["event", "batch"], ["event"]))
@pytest.mark.parametrize("fanouts", cases([(3, 2), (2, 2, 2)], [(2, 2, 2)]))
def test_gpu_graph_batches_differ_only_by_padding(gpu, visibility, fanouts):
    changes = {"visibility": visibility, "fanouts": fanouts, "stop": 60}
    there = recent_plan(TemporalGraph.from_events(EVENTS, device=opened(gpu)), **changes)
    here = recent_plan(**changes)
    sources = reusing(there, pads=True), reusing(here)
    pairs = zip(*map(tasks_of, sources), strict=True)
    for there_task, here_task in pairs:
        padded, exact = sources[0].batch(*there_task), sources[1].batch(*here_task)
        assert_on(there.graph.device, padded)
        assert_same_rows(padded.to("cpu"), exact)


def assert_same_rows(padded: Batch, exact: Batch) -> None:
    """Fail unless blocks are equal, ignoring padding rows."""
    pairs = zip(padded.blocks, exact.blocks, strict=True)
    for (above, upper), (block, other) in pairwise(pairs):
        size, reused, expected = len(other.target), block.reused, other.reused
        assert len(block.target) == padded_rows(size)
        assert not block.mask[size:].any()
        assert torch.equal(block.eid[:size], other.eid)
        assert torch.equal(block.dt[:size], other.dt)
        assert torch.equal(reused.slot[: len(expected.slot)], expected.slot)
        assert torch.equal(reused.stored[: len(expected.stored)], expected.stored)
        assert torch.equal(reused.weight[:size], expected.weight)
        # rows that are reused come behind the padding
        moved = upper.neighbor + (upper.neighbor >= size) * (padded_rows(size) - size)
        found = above.neighbor[: len(upper.target)]
        assert torch.equal(found[upper.mask], moved[upper.mask])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": "uniform"}, "uniform draws for a node depends on the rest"),
        ({"fanouts": (3,)}, "below the top layer, and this model has 1"),
        ({"with_memory": True}, "without memory"),
        ({"slices": 2}, "leave out replay and slices"),
    ],
)
def test_plans_whose_rows_differ_from_batch_to_batch_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        reusing(recent_plan(**changes))
