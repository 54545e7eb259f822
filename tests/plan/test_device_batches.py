"""GPU batches equal CPU batches bit for bit, on their own CUDA stream, in reused memory."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from helpers.devices import apart, device_of, for_each_gpu, opened
from helpers.emulator.device import EmulatedDevice, EmulatedGraph
from helpers.emulator.tensors import watching
from helpers.made_streams import made_events
from helpers.plans import assert_on, assert_same_batch, assert_same_but_for_padding, pad, plan_of
from tgflow import Batch, EventBatch, Loader, Plan, TemporalGraph
from tgflow.cuda.device import Device
from tgflow.graph.cache import cached
from tgflow.graph.log import EventLog
from tgflow.graph.tables import FeatureTable
from tgflow.plan import ExperienceReplay
from tgflow.plan.device_preparer import LentBatches, PinnedCopies
from tgflow.plan.in_order import BatchError
from tgflow.plan.loader import SideStream
from tgflow.plan.negatives import FixedNegatives
from tgflow.plan.padding import shape_of

pytestmark = pytest.mark.timeout(120)

EVENTS = made_events(240)


@pytest.mark.parametrize("gpu", [apart])
@pytest.mark.parametrize("placement", [None, "device", "uva"])
@pytest.mark.parametrize("is_cached", [False, True])
@pytest.mark.parametrize("changes", [{}, {"visibility": "batch", "with_memory": False}])
def test_preparation_does_not_synchronize(
    gpu: str, placement: Any, is_cached: bool, changes: dict[str, Any]
) -> None:
    device = opened(gpu)
    tables = [
        FeatureTable(2, placement=placement, device=device) for _ in range(2 * bool(placement))
    ]
    if is_cached:
        tables = [cached(table, rows=30, device=device) for table in tables]
    if tables:
        tables[1].append(torch.rand(20, 2))
    edge_x, node_x = tables or (None, None)
    events = EVENTS if placement else made_events(120, x_dim=0)
    graph = TemporalGraph.from_events(events, edge_x=edge_x, node_x=node_x, device=device)
    plan = plan_of(graph, replay=ExperienceReplay(ratio=0.5), **changes)
    with watching() as watch:
        for index in range(0, 12, 4):
            plan.batch(0, index)
    assert watch.waits == []


def test_cache_planned_on_the_host_is_refused() -> None:
    cache = cached(FeatureTable(2), rows=30, policy="belady")
    graph = TemporalGraph.from_events(EVENTS[:40], edge_x=cache, device=opened("apart"))
    with pytest.raises(ValueError, match=r"a GPU samples without.*policy=\"lru\""):
        plan_of(graph)


@for_each_gpu
def test_device_parts_and_fixed_negatives_match_the_cpu(gpu: str) -> None:
    """Three negatives for every other event, and one for those between."""
    counts = torch.tensor([3, 1] * 20)
    start = torch.tensor([0, *counts.cumsum(0)])
    fixed = FixedNegatives(20, start, EVENTS.dst[:80])
    device = device_of(gpu)

    def parts(graph: TemporalGraph, **where: Any) -> Loader:
        plan = plan_of(graph, negatives=fixed, batch_size=20, start=20, stop=50)
        tasks = [(0, part.index, part) for part in plan.parts(30, with_storing=True)]
        return Loader.of_tasks(plan, tasks, **where)

    here = TemporalGraph.from_events(EVENTS[:100])
    there = TemporalGraph.from_events(EVENTS[:100], device=opened(gpu))
    expected = list(parts(here))
    assert [batch.num_new for batch in expected] == [7, 7, 6, 20, 7, 3, 10]
    for graph in (there, here):
        for found, exact in zip(parts(graph, device=device), expected, strict=True):
            assert_on(device.device, found)
            assert_same_but_for_padding(found, exact)
            assert exact.negative_mask is not None
            assert torch.equal(found.negative_mask, exact.negative_mask)  # type: ignore[arg-type]


def graph_on(device: Device, num_rows: int = 9) -> TemporalGraph:
    """Return a graph with both kinds of features in device-readable memory."""
    edge_x = FeatureTable(2, placement="device", device=device)
    node_x = FeatureTable(3, placement="uva", device=device)
    node_x.append(torch.arange(3.0 * num_rows).view(-1, 3))
    return TemporalGraph(device=device, edge_x=edge_x, node_x=node_x)


def graph_here(num_rows: int = 9) -> TemporalGraph:
    node_x = FeatureTable(3)
    node_x.append(torch.arange(3.0 * num_rows).view(-1, 3))
    return TemporalGraph(edge_x_dim=2, node_x=node_x)


def of_plan(plan: Plan, num_slots: int) -> Callable[[int, int], LentBatches]:
    assert plan.gpu is not None
    make = plan.batches_on(plan.gpu, num_slots)
    return lambda epoch, index: make([(epoch, index)])


def only(lent: LentBatches) -> Batch:
    """Return the batch, without cutting it to its size."""
    [batch] = lent.batches
    if lent.slot is None:
        return batch
    [batch] = lent.slot.cut(None, lent.drawn)
    return batch


def copy_of(batch: Batch) -> Batch:
    """Return a copy of a batch on the CPU."""
    return batch.map(lambda column: column.to("cpu", copy=True))


@for_each_gpu
def test_batch_stays_valid_until_freed(gpu: str) -> None:
    """Without a free slab a batch allocates its own memory."""
    graph, here = graph_on(device_of(gpu)), graph_here()
    for g in (graph, here):
        g.append(EVENTS)
    plan, expected = plan_of(graph), plan_of(here)
    make = of_plan(plan, 2)
    kept = [make(0, index) for index in range(9)]
    for index, lent in enumerate(kept):
        assert_same_but_for_padding(copy_of(only(lent)), expected.batch(0, index))
    assert len({id(only(lent).eid) for lent in kept}) == 9
    kept[1].free()
    again = only(make(0, 20))
    assert again.eid is only(kept[1]).eid
    assert_same_but_for_padding(copy_of(again), expected.batch(0, 20))
    assert_same_but_for_padding(copy_of(only(kept[4])), expected.batch(0, 4))


@for_each_gpu
@pytest.mark.parametrize(("part", "num"), [(64, 4), (32, 2), (3, 1)])
def test_large_slabs_are_fewer(
    gpu: str, part: int, num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, here = graph_on(device_of(gpu)), graph_here()
    for g in (graph, here):
        g.append(EVENTS)
    size = sum(tensor.nbytes for tensor in plan_of(graph).batch(0, 0).tensors())
    monkeypatch.setattr(graph.gpu, "total_bytes", part * size)
    make = of_plan(plan_of(graph), 4)
    shown = nullcontext() if num == 4 else pytest.warns(RuntimeWarning, match=f"^{num} of 4 .* M")
    with shown:
        kept = [make(0, index) for index in range(4)]
    assert sum(lent.slot is not None for lent in kept) == num
    for index, lent in enumerate(kept):
        assert_same_but_for_padding(copy_of(only(lent)), plan_of(here).batch(0, index))


def test_slab_is_rewritten_after_all_readers_of_its_last_batch() -> None:
    gpu = EmulatedDevice()
    graph = graph_on(gpu)
    graph.append(EVENTS)
    make = of_plan(plan_of(graph), 1)
    gpu.current = 7
    first = make(0, 3)
    gpu.current = 9  # CUDA stream of the training
    first.free()
    gpu.current = 7
    gpu.waits.clear()
    assert only(make(0, 4)).eid is only(first).eid
    assert (7, 9) in gpu.waits


@for_each_gpu
def test_later_nodes_without_features_have_zeros(gpu: str) -> None:
    """Captured graphs become invalid then: node rows end at another index."""
    device = device_of(gpu)
    there, here = graph_on(device, num_rows=6), graph_here(num_rows=6)
    few = EventBatch(EVENTS.src % 3, 3 + EVENTS.dst % 3, EVENTS.t, EVENTS.x)[:70]
    many = EventBatch(EVENTS.src, EVENTS.dst, EVENTS.t + int(EVENTS.t[-1]), EVENTS.x)[:60]
    plans = [plan_of(graph) for graph in (there, here)]
    make, index = of_plan(plans[0], 1), 0
    for events in (few, many):
        for graph in (there, here):
            graph.append(events)
        while (index + 1) * 10 <= here.num_events:
            lent = make(0, index)
            assert_same_but_for_padding(copy_of(only(lent)), plans[1].batch(0, index))
            lent.free()
            index += 1
    assert here.node_x_end == there.node_x_end == 6


def test_replay_waits_for_earlier_publications() -> None:
    """As for a launch: the store and its tables are registered as read."""
    gpu = EmulatedDevice()
    graph = graph_on(gpu)
    graph.append(EVENTS[:200])
    make = of_plan(plan_of(graph), 1)
    gpu.current = 7
    make(0, 0).free()
    gpu.current = 0
    graph.append(EVENTS[200:])
    gpu.current = 7
    waits: list[tuple[int, int]] = []
    replay = EmulatedGraph.replay

    def watched(captured: EmulatedGraph) -> None:
        waits.extend(gpu.waits)
        replay(captured)

    gpu.waits.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmulatedGraph, "replay", watched)
        make(0, 21)
    assert len([wait for wait in waits if wait[0] == 7 != wait[1]]) >= 2  # the store, a table


def test_replay_does_not_block_the_host() -> None:
    device = device_of("apart")
    graph = graph_on(device)
    graph.append(EVENTS)
    make = of_plan(plan_of(graph), 1)
    make(0, 0).free()
    with watching() as watch:
        for index in range(4, 8):
            make(0, index).free()
    assert watch.waits == []


@pytest.mark.parametrize("seed", [0, 2])
@pytest.mark.parametrize("gpu", [apart])
def test_pinned_memory_is_not_reused_before_its_copy_finishes(gpu: str, seed: int) -> None:
    plan = plan_of(TemporalGraph.from_events(EVENTS))
    batches = [plan.batch(0, index) for index in range(20)]
    with EmulatedDevice.with_late_streams(seed) as device:
        pinned = PinnedCopies(device)
        copies = [pinned.of_batch(batch) for batch in batches]
        for copy, batch in zip(copies, batches, strict=True):
            assert_same_batch(copy_of(copy), pad(batch, shape_of(batch).rounded()))


def test_consumer_cuda_stream_waits_for_the_producer() -> None:
    gpu = EmulatedDevice()
    side, plan = SideStream(gpu), plan_of(TemporalGraph.from_events(EVENTS, device=gpu))
    gpu.waits.clear()
    made = [
        side.make(lambda index: LentBatches([plan.batch(0, index)]), index) for index in range(3)
    ]
    assert gpu.current_stream() == 0
    stream = gpu.stream("batches")
    assert [ready.done.stream for ready in made] == [stream] * 3  # type: ignore[attr-defined]
    gpu.current, kept = 7, []
    gpu.keep_for_current_stream = lambda tensor: kept.append((gpu.current, id(tensor)))  # type: ignore[method-assign]
    taken = [batch for ready in made for batch in side.take(ready)]
    assert [wait for wait in gpu.waits if wait[0] == 7] == [(7, stream)] * 3
    assert kept == [(7, id(tensor)) for batch in taken for tensor in batch.tensors()]
    assert gpu.synchronized == 0


def taken(gpu: EmulatedDevice, *, busy: bool) -> list[Batch]:
    plan = plan_of(TemporalGraph.from_events(EVENTS, device=gpu))
    loader, side = iter(Loader(plan, num_threads=0, device=gpu)), gpu.stream("batches")
    batches = []
    for _ in range(4):
        gpu.busy |= {side} if busy else set()
        batches.append(next(loader))
    return batches


def test_host_waits_only_for_a_batch_taken_before_it_is_prepared() -> None:
    """Its size is known in both cases, independent of timing."""
    late, early = EmulatedDevice(), EmulatedDevice()
    of_late, of_early = taken(late, busy=True), taken(early, busy=False)
    assert (late.synchronized, early.synchronized) == (4, 0)
    for a, b in zip(of_late, of_early, strict=True):
        assert_same_batch(a, b)


def test_loader_names_an_unsupported_device() -> None:
    other = EmulatedDevice(device=torch.device("meta"))
    plan = plan_of(TemporalGraph.from_events(EVENTS, device=EmulatedDevice()))
    for device in (other, other.device):
        with pytest.raises(ValueError, match="batches are made on cpu, got device meta"):
            Loader(plan, device=device)


def test_error_after_all_batches_are_drawn_names_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    events = replace(made_events(40, x_dim=0), weight=torch.rand(40))
    gpu = opened("apart")
    batches = iter(Loader(plan_of(TemporalGraph.from_events(events, device=gpu)), device=gpu))

    def fail(*_: Any) -> Any:
        raise OSError("cannot read the column")

    monkeypatch.setattr(EventLog, "column", fail)
    with pytest.raises(BatchError, match=r"batch 0 of epoch 0 failed: cannot read the column"):
        next(batches)


def test_batches_of_a_slot_name_their_memory() -> None:
    graph = graph_on(EmulatedDevice())
    graph.append(EVENTS)
    make = of_plan(plan_of(graph), 1)
    found = []
    for index in range(20):
        lent = make(0, index)
        [batch] = lent.cut()
        assert (batch.index, batch.host) == (index, lent.drawn[0].host)
        found.append(batch)
        lent.free()
    assert len({batch.memory for batch in found} - {None}) < 5
    changed = replace(found[-1], position=found[-1].position + 1)
    assert changed.memory is None
