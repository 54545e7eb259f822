"""A batch is the same for every preparation: one call, threads, kernels, or a copy."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers.devices import apart, cuda, device_of, for_each_gpu, opened
from helpers.effort import tries
from helpers.made_streams import made_events
from helpers.plans import (
    assert_on,
    assert_same_batch,
    assert_same_but_for_padding,
    plan_of,
    plans,
    recent_plan,
    tied_events,
)
from helpers.strategies import samplers
from tgflow import Batch, EventBatch, Loader, Plan, TemporalGraph, _core
from tgflow.base.keys import KeyDomain, derive_key
from tgflow.cuda.device import Device
from tgflow.cuda.row_lists import row_lists
from tgflow.graph.cache import cached
from tgflow.graph.counts import Count, Number
from tgflow.graph.tables import FeatureTable
from tgflow.nn import Pairs
from tgflow.plan import ExperienceReplay, NegativeSampler
from tgflow.plan.assemble import assemble
from tgflow.plan.host_preparer import KEPT_SLABS, HostPreparer, host_preparer

pytestmark = pytest.mark.timeout(120)

COUNTS: list[tuple[Number, ...]] = [
    (),
    (Count("pair").num, Count("dst").age, Count("dst", half_life=7.0).decayed.log1p()),
]

PlanOn = Callable[[Device | None], Plan]
"""Builds the same plan of a graph on a device or in host memory."""


@st.composite
def any_plans(draw: st.DrawFn) -> PlanOn:
    events, changes = draw(plans())
    sampler = draw(samplers())
    size = len(events)
    kind = draw(st.sampled_from(["random", "historical", "inductive"]))
    since = draw(st.integers(0, size)) if kind == "inductive" else None
    more = (
        {"collide": draw(st.booleans())} if kind == "random" else {"replace": draw(st.booleans())}
    )
    cut = draw(st.one_of(st.none(), st.integers(0, size)))
    num = draw(st.integers(1, 3))
    changes["negatives"] = NegativeSampler(**{kind: num}, cut=cut, since=since, **more)
    changes |= {"strategy": sampler.strategy, "span": sampler.span}
    if draw(st.booleans()):
        only = draw(st.lists(st.integers(0, size - 1), min_size=1, unique=True))
        changes |= {"only": torch.tensor(sorted(only)), "start": 0, "replay": None}
    if changes.get("only") is None and changes["replay"] is None:
        changes["negatives"] = replace(changes["negatives"], every=draw(st.integers(1, 3)))
    changes["counts"] = draw(st.sampled_from(COUNTS))
    changes["counts_dtype"] = draw(st.sampled_from([torch.float32, torch.float64]))
    node_rows = draw(st.none() | st.integers(0, 9).map(lambda rows: torch.rand(rows, 3)))
    changes["slices"] = draw(st.integers(1, 3))
    places = st.sampled_from(["host", "disk", "uva", "device", "cached"])
    node_place, edge_place = draw(places), draw(places)

    def table(dim: int, place: str, device: Device | None) -> Any:
        """In device-readable memory, only for a plan on a device."""
        if place in ("host", "disk") or device is None:
            return FeatureTable(dim, placement="disk" if place == "disk" else "host")
        rows = FeatureTable(dim, placement="uva" if place == "cached" else place, device=device)
        return cached(rows, rows=7, device=device) if place == "cached" else rows

    def plan_on(device: Device | None) -> Plan:
        node_x = None
        if node_rows is not None:
            node_x = table(3, node_place, device)
            node_x.append(node_rows)
        edge_x = None if events.x is None else table(2, edge_place, device)
        on: dict[str, Any] = {} if device is None else {"device": device}
        graph = TemporalGraph.from_events(
            events, time_unit="ms", edge_x=edge_x, node_x=node_x, **on
        )
        return recent_plan(graph, **changes)

    return plan_on


def step_by_step(plan: Plan, *task: int) -> Batch:
    """Return a batch by the general path, which `test_plan` compares with the slow reference."""
    return plan.of_roots(plan.draws.roots(*task))


@settings(max_examples=tries(100, 12))
@given(any_plans())
def test_single_call_batches_match_the_general_path(plan_on: PlanOn) -> None:
    plan = plan_on(None)
    slabs = host_preparer(plan.draws)
    assert slabs is not None
    for task in tasks_of(plan):
        assert_same_batch(slabs.batch(*task), step_by_step(plan, *task))
        pending = slabs.pending(*task)
        expected = assemble(plan.draws, plan.draws.roots(*task))
        assert_same_batch(pending.batch, expected.batch)
        assert pending.num_in_blocks == expected.num_in_blocks
        assert pending.ids.keys() == expected.ids.keys()
        for name, ids in pending.ids.items():
            assert torch.equal(ids, expected.ids[name])


@settings(max_examples=tries(60, 12))
@given(any_plans())
def test_the_core_draws_the_negatives_and_counts_of_the_general_path(plan_on: PlanOn) -> None:
    draws = plan_on(None).draws
    for index in range(len(draws)):
        drawn, begin = draws.roots(1, index), draws.span(index)[0]
        host, found, key = drawn.host, drawn.negatives, derive_key(drawn.key, KeyDomain.NEGATIVES)
        start, pairs = draws._starts(host.eid, begin), draws.pairs_at(begin)
        expected = draws.negatives.draw(pairs, key, host.src, host.dst, start=start, stop=host.end)
        assert torch.equal(found.src, expected.src)
        assert torch.equal(found.dst, expected.dst)
        assert found.num_fallbacks == expected.num_fallbacks
        if draws.counts.asked:
            counts = draws.counts.answer(**draws.pairs_of(drawn)._asdict())
            assert torch.equal(drawn.counts, counts.to(draws.counts_dtype))
        if expected.mask is None:
            assert found.mask is None
        else:
            assert torch.equal(found.mask, expected.mask)


def tasks_of(plan: Plan) -> list[tuple[int, ...]]:
    """Return a task for each batch, and one for each slice of it."""
    numbers = range(plan.draws.slices if plan.draws.slices > 1 else 0)
    return [(1, i, *number) for i in range(len(plan)) for number in [(), *((n,) for n in numbers)]]


def made_there(plan_on: PlanOn, device: Device) -> Iterator[Batch]:
    plan = plan_on(device)
    return (plan.batch(*task) for task in tasks_of(plan))


def loaded_there(plan_on: PlanOn, device: Device) -> Iterator[Batch]:
    plan = plan_on(device)
    return iter(Loader.of_tasks(plan, tasks_of(plan), num_threads=2, captures=True))


def copied(plan_on: PlanOn, device: Device) -> Iterator[Batch]:
    plan = plan_on(None)
    return iter(Loader.of_tasks(plan, tasks_of(plan), num_threads=2, device=device))


@for_each_gpu
@pytest.mark.parametrize("prepare", [made_there, loaded_there, copied])
@settings(max_examples=tries(40, 8))
@given(any_plans())
def test_device_batches_match_the_host(
    gpu: str, prepare: Callable[[PlanOn, Device], Iterator[Batch]], plan_on: PlanOn
) -> None:
    device, here = device_of(gpu), plan_on(None)
    for batch, task in zip(prepare(plan_on, device), tasks_of(here), strict=True):
        assert_on(device.device, batch)
        expected = here.batch(*task)
        if here.draws.with_nodes:
            assert_same_but_for_padding(batch, expected)
        else:  # what is of events is never padded
            assert_same_batch(batch.to("cpu"), expected)


def slabs_of(plan: Plan) -> HostPreparer:
    slabs = host_preparer(plan.draws)
    assert slabs is not None
    return slabs


def test_slab_is_not_reused_while_any_of_its_tensors_is_alive() -> None:
    """Even if only a small part is kept: here the smallest tensor, and a view of a view."""
    plan = recent_plan(TemporalGraph.from_events(tied_events(200)))
    slabs = slabs_of(plan)
    kept: list[tuple[Tensor, Tensor]] = []
    for index in range(20):
        part = slabs.batch(0, index).blocks[0].mask[1:, :1]
        kept.append((part, part.clone()))
    assert slabs.pool.num_used == 20
    for part, before in kept:
        assert torch.equal(part, before)
    del part, before
    kept.clear()
    assert (slabs.pool.num_used, slabs.pool.num_free) == (0, KEPT_SLABS)


def test_events_of_a_batch_do_not_keep_its_slab() -> None:
    """Callers that inspect predictions keep them for an epoch."""
    slabs = slabs_of(recent_plan(TemporalGraph.from_events(tied_events(200))))
    hosts = [slabs.batch(0, index).host for index in range(20)]
    assert slabs.pool.num_used == 0
    assert [int(host.eid[0]) for host in hosts] == list(range(0, 200, 10))


def test_failed_batch_returns_its_slab_and_affects_no_other() -> None:
    """A single node has no negatives."""
    alone = EventBatch(torch.zeros(3).long(), torch.zeros(3).long(), torch.arange(3))
    plan = recent_plan(TemporalGraph.from_events(alone), batch_size=3)
    slabs = slabs_of(plan)
    for _ in range(3):
        with pytest.raises(ValueError, match="has no negative"):
            slabs.batch(0, 0)
    with pytest.raises(IndexError, match="there is no batch 1"):
        slabs.batch(0, 1)
    assert slabs.pool.num_used == 0


def test_slab_contains_one_batch() -> None:
    graph = _core.TemporalGraph(_core.Direction.undirected, 2**62, 0, 64)
    ends = torch.arange(4), torch.arange(4, 8)
    graph.append(*ends, torch.arange(4), None, False)
    pairs = _core.PairIndex()
    pairs.append(*ends)
    rules = (
        pairs, None, 0, 4, [2], _core.Strategy.recent, 1, False, True, True, 1.0, 1, 1, False, -1,
        0, False, True, 1.0, False,
    )  # fmt: skip
    preparer = _core.Preparer(graph.log, graph, *rules)

    def fill(slab, *request, of=preparer):
        found = []
        slab.fill([of.request(*request)], found)
        return found[0]

    slab = _core.Slab(_core.SlabPool(1, None))
    with pytest.raises(ValueError, match="length"):
        torch.frombuffer(slab, dtype=torch.uint8)
    call = (1, 2, None, None, None, False, True, 0, 4, 0, None, 0, 0, True, None, False, None, 9,
            False, None)  # fmt: skip
    layout = fill(slab, *call)[:2]
    memory = torch.frombuffer(slab, dtype=torch.uint8)
    before = memory.clone()
    second = fill(slab, *call)[0]
    both = torch.frombuffer(slab, dtype=torch.uint8)
    assert len(both) == 2 * len(memory)
    assert [place for place in second if place >= len(memory)]
    assert all(torch.equal(x, before) for x in (memory, both[: len(memory)]))
    assert fill(_core.Slab(_core.SlabPool(1, None)), *call)[:2] == layout
    for wrong in (torch.ones(3, 1).long(), torch.ones(4, 2).long(), torch.ones(4, 1)):
        with pytest.raises(ValueError, match="negative_dst must be int64"):
            fill(_core.Slab(_core.SlabPool(1, None)), *call[:2], wrong, *call[3:])
    with pytest.raises(ValueError, match="graph and counts must be of the log"):
        _core.Preparer(
            _core.TemporalGraph(_core.Direction.undirected, 2**62, 0, 64).log, graph, *rules
        )
    drawing = _core.Preparer(graph.log, None, *rules)
    with pytest.raises(ValueError, match="without a graph batches are only drawn"):
        fill(_core.Slab(_core.SlabPool(1, None)), *call, of=drawing)
    for rows in ([2, 1], [1, 1], [-1]):
        with pytest.raises(ValueError, match="rows must be distinct and ascending from 0"):
            fill(_core.Slab(_core.SlabPool(1, None)), *call[:-1], torch.tensor(rows))
    with pytest.raises(IndexError, match="row 4 is not in a batch of 4"):
        fill(_core.Slab(_core.SlabPool(1, None)), *call[:-1], torch.tensor([4]))
    short = torch.ones(2, 3)
    with pytest.raises(IndexError, match="is not in a table of 2 rows"):
        fill(_core.Slab(_core.SlabPool(1, None)), *call[:14], short, *call[15:])
    broken = _core.SlabPool(1, lambda size: torch.zeros(size - 1, dtype=torch.uint8))
    with pytest.raises(ValueError, match="allocated memory must hold 4096 bytes"):
        fill(_core.Slab(broken), *call)


EVENTS = made_events(240)


def assert_lists(found, row, num_rows, mask=None):
    """Compare starts, and the slots that are in a list."""
    expected = row_lists(row, num_rows, mask)
    assert torch.equal(found.start.cpu(), expected.start.cpu())
    used = int(expected.start[-1])
    assert torch.equal(found.slot[:used].cpu(), expected.slot[:used].cpu())
    assert found.slot.shape == expected.slot.shape


@pytest.mark.parametrize("device", [apart, cuda])
@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("captures", [False, True])
def test_lists_of_a_batch_are_those_of_its_rows_without_the_padding_that_is_cut(
    device, is_there, captures
):
    where = {"device": opened(device)} if is_there else {}
    graph = TemporalGraph.from_events(EVENTS, **where)
    plan = plan_of(graph, replay=ExperienceReplay(ratio=0.5), for_gradients=True)
    gpu = plan.gpu or device_of(device)
    for batch in Loader(plan, 0, range(12), device=gpu, captures=captures, num_threads=0):
        frontiers = [*(len(block.target) for block in batch.blocks), len(batch.nodes)]
        for block, below in zip(batch.blocks, frontiers[1:], strict=True):
            assert_lists(block.target_lists, block.target, below)
            assert_lists(block.neighbor_lists, block.neighbor, below, block.mask)
        pairs = Pairs.of(batch)
        assert_lists(batch.src_lists, pairs.src_row, frontiers[0])
        assert_lists(batch.dst_lists, pairs.dst_row, frontiers[0])


def test_batches_in_host_memory_and_without_gradients_have_no_lists():
    for device, for_gradients in (("cpu", True), ("apart", False)):
        graph = TemporalGraph.from_events(EVENTS[:60], device=opened(device))
        batch = plan_of(graph, for_gradients=for_gradients).batch(0, 2)
        assert batch.src_lists is batch.blocks[0].target_lists is None
