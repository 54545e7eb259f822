"""Batches in slabs: the same bits as without, in memory that is used again and by nobody else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers.plan_variants import made_events, plan_of
from tgflow import _core
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.plan import Plan
from tgflow.plan.plan import KEPT_SLABS, HostPreparer, host_preparer

pytestmark = pytest.mark.timeout(120)


def slabs_of(plan: Plan) -> HostPreparer:
    slabs = host_preparer(plan)
    assert slabs is not None
    return slabs


def test_a_slab_is_not_used_again_while_any_tensor_of_it_is_alive() -> None:
    """However little of the batch is kept: here its smallest part, and a view of a view."""
    plan = plan_of(TemporalGraph.from_events(made_events(200)))
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


def test_the_events_of_a_batch_keep_no_slab() -> None:
    """Those who look back at what was predicted keep them for an epoch."""
    slabs = slabs_of(plan_of(TemporalGraph.from_events(made_events(200))))
    hosts = [slabs.batch(0, index).host for index in range(20)]
    assert slabs.pool.num_used == 0
    assert [int(host.eid[0]) for host in hosts] == list(range(0, 200, 10))


def test_a_batch_that_fails_gives_its_slab_back_and_harms_no_other() -> None:
    """Of one node alone there is no negative."""
    alone = EventBatch(torch.zeros(3).long(), torch.zeros(3).long(), torch.arange(3))
    plan = plan_of(TemporalGraph.from_events(alone), batch_size=3)
    slabs = slabs_of(plan)
    for _ in range(3):
        with pytest.raises(ValueError, match="has no negative"):
            slabs.batch(0, 0)
    with pytest.raises(IndexError, match="there is no batch 1"):
        slabs.batch(0, 1)
    assert slabs.pool.num_used == 0


def test_a_slab_holds_one_batch() -> None:
    graph = _core.TemporalGraph(_core.Direction.undirected, 2**62, 0, 64)
    ends = torch.arange(4), torch.arange(4, 8)
    graph.append(*ends, torch.arange(4), None, False)
    pairs = _core.PairIndex()
    pairs.append(*ends)
    preparer = _core.Preparer(
        graph, pairs, None, 0, 4, [2], _core.Strategy.recent, 1, False, True, True, 1.0, 1, False,
        -1, 0, False, True, 1.0,
    )  # fmt: skip
    slab = _core.Slab(_core.SlabPool(1, None))
    with pytest.raises(ValueError, match="length"):
        torch.frombuffer(slab, dtype=torch.uint8)
    call = (1, 2, [3], 0, 4, None, 0, 0, True, None, False, None, 9, False)
    layout = preparer.prepare(slab, *call)
    memory = torch.frombuffer(slab, dtype=torch.uint8)
    before = memory.clone()
    with pytest.raises(ValueError, match="a slab holds one batch"):
        preparer.prepare(slab, *call)
    assert torch.equal(memory, before)
    assert preparer.prepare(_core.Slab(_core.SlabPool(1, None)), *call) == layout
    short = torch.ones(2, 3)
    with pytest.raises(IndexError, match="is not in a table of 2 rows"):
        preparer.prepare(_core.Slab(_core.SlabPool(1, None)), *call[:9], short, *call[10:])
    broken = _core.SlabPool(1, lambda size: torch.zeros(size - 1, dtype=torch.uint8))
    with pytest.raises(ValueError, match="allocated memory must hold 4096 bytes"):
        preparer.prepare(_core.Slab(broken), *call)
