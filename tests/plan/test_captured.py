"""Preparation by replays of a CUDA graph: the batches that kernels make one by one, to the bit.

The emulator does the captured work again as it was told when it was captured: what was passed by
value then, and not read from device memory, shows in the next batch.
"""

from __future__ import annotations

import pytest
import torch

from helpers.device_batches import assert_same_but_for_padding
from helpers.devices import device_of, for_each_gpu
from helpers.emulator.device import EmulatedDevice, EmulatedGraph
from helpers.emulator.tensors import watching
from helpers.made_plans import plan_of
from helpers.made_streams import made_events
from tgflow.batch import Batch
from tgflow.cuda.clock import WorkClock
from tgflow.cuda.device import Device
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.plan import Plan
from tgflow.plan.plan import MakeBatch
from tgflow.tables import FeatureTable

pytestmark = pytest.mark.timeout(120)

EVENTS = made_events(236)


def graph_on(device: Device, num_rows: int = 9) -> TemporalGraph:
    """Return a graph with both kinds of features where kernels read them."""
    edge_x = FeatureTable(2, placement="device", device=device)
    node_x = FeatureTable(3, placement="uva", device=device)
    node_x.append(torch.arange(3.0 * num_rows).view(-1, 3))
    return TemporalGraph(device=device, edge_x=edge_x, node_x=node_x)


def graph_here(num_rows: int = 9) -> TemporalGraph:
    node_x = FeatureTable(3)
    node_x.append(torch.arange(3.0 * num_rows).view(-1, 3))
    return TemporalGraph(edge_x_dim=2, node_x=node_x)


def of_plan(plan: Plan, num_slabs: int) -> MakeBatch:
    assert plan.gpu is not None
    return plan.batches_on(plan.gpu, num_slabs, WorkClock())


def copy_of(batch: Batch) -> Batch:
    """Return a batch on the CPU, which stays as it is."""
    return batch.map(lambda column: column.to("cpu", copy=True))


@for_each_gpu
def test_a_batch_stays_until_it_is_freed(gpu: str) -> None:
    """Where no slab is free a batch has memory of its own."""
    graph, here = graph_on(device_of(gpu)), graph_here()
    for g in (graph, here):
        g.append(EVENTS)
    plan, expected = plan_of(graph), plan_of(here)
    make = of_plan(plan, 2)
    kept = [make(0, index) for index in range(9)]
    for index, lent in enumerate(kept):
        assert_same_but_for_padding(copy_of(lent.batch), expected.batch(0, index))
    assert len({id(lent.batch.eid) for lent in kept}) == 9
    kept[3].free()
    again = make(0, 20).batch
    assert again.eid is kept[3].batch.eid
    assert_same_but_for_padding(copy_of(again), expected.batch(0, 20))
    assert_same_but_for_padding(copy_of(kept[4].batch), expected.batch(0, 4))


def test_a_slab_is_written_behind_whoever_reads_its_last_batch() -> None:
    gpu = EmulatedDevice()
    graph = graph_on(gpu)
    graph.append(EVENTS)
    make = of_plan(plan_of(graph), 1)
    for index in range(3):
        make(0, index)  # warms up
    gpu.current = 7
    first = make(0, 3)
    gpu.current = 9  # where it is learned from
    first.free()
    gpu.current = 7
    gpu.waits.clear()
    assert make(0, 4).batch.eid is first.batch.eid
    assert (7, 9) in gpu.waits


@for_each_gpu
def test_nodes_without_features_that_come_later_have_zeros(gpu: str) -> None:
    """What a graph was captured for is over then: rows of nodes end where they did not before."""
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
            assert_same_but_for_padding(copy_of(lent.batch), plans[1].batch(0, index))
            lent.free()
            index += 1
    assert here.node_x_end == there.node_x_end == 6


def test_a_replay_comes_behind_what_was_published_before() -> None:
    """As a launch does: the store and its tables are enclosed as read."""
    gpu = EmulatedDevice()
    graph = graph_on(gpu)
    graph.append(EVENTS[:200])
    make = of_plan(plan_of(graph), 1)
    gpu.current = 7
    for index in range(4):
        make(0, index).free()
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


def test_the_host_waits_for_no_replay() -> None:
    device = device_of("apart")
    graph = graph_on(device)
    graph.append(EVENTS)
    make = of_plan(plan_of(graph), 1)
    for index in range(4):
        make(0, index).free()
    with watching() as watch:
        for index in range(4, 8):
            make(0, index).free()
    assert watch.waits == []
