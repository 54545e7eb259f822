"""A graph in two tiers: placement of blocks, their bytes, and lack of memory."""

import re

import numpy as np
import pytest
import torch

from helpers.strategies import skewed_events
from tgflow import EventBatch, TemporalGraph
from tgflow.base.units import parse_bytes
from tgflow.graph.sampling import recent_neighbors, uniform_neighbors

EVENTS = skewed_events(60_000, 3_000)


def graph_in_batches(events: EventBatch, batch: int = 1000, **how) -> TemporalGraph:
    graph = TemporalGraph(**how)
    for start in range(0, len(events), batch):
        graph.append(events[start : start + batch])
    return graph


def assert_same_answers(one: TemporalGraph, other: TemporalGraph) -> None:
    generator = torch.Generator().manual_seed(1)
    nodes = torch.randint(0, 3_100, (4000,), generator=generator)
    t = torch.randint(0, 61_000, (4000,), generator=generator)
    for ask in (recent_neighbors, lambda *query: uniform_neighbors(*query, key=7)):
        mine, yours = ask(one, nodes, t, 10), ask(other, nodes, t, 10)
        for name in ("nodes", "t", "eid", "count"):
            assert torch.equal(getattr(mine, name), getattr(yours, name))


@pytest.mark.parametrize("budget", [4096, "100KB", "1 MiB"])
def test_device_budget_is_respected_and_changes_no_result(budget):
    plain = graph_in_batches(EVENTS)
    graph = graph_in_batches(EVENTS, device_budget=budget)
    assert_same_answers(graph, plain)
    stats = graph.stats()
    device, host = stats.tiers
    assert (device.name, host.name) == ("device", "host")
    assert device.bytes <= parse_bytes(budget)
    assert host.num_blocks > 0
    assert stats.num_entries == plain.stats().num_entries
    assert device.hit_rate + host.hit_rate == pytest.approx(1)
    assert plain.stats().tiers[0].hit_rate == 1


@pytest.mark.parametrize(
    "size", ["x", "8 GBB", "-1", -1, "1.5.2GB", "5iB", "5i", 2**63, str(2**63), "8388608TiB"]
)
def test_invalid_sizes_are_named(size):
    with pytest.raises(ValueError, match="size"):
        parse_bytes(size)


@pytest.mark.parametrize("size", [2e9, None, b"8GB", [1]])
def test_sizes_of_other_types_are_named(size):
    with pytest.raises(TypeError, match=re.escape(f"got {size!r}")):
        parse_bytes(size)


def test_sizes_with_units_are_parsed():
    written = (7, "7", "8GB", "1.5 kb", "2MiB", "1K", "3 ki", np.int64(9), str(2**63 - 1))
    sizes = [parse_bytes(size) for size in written]
    assert sizes == [7, 7, 8 * 10**9, 1500, 2 * 2**20, 1000, 3072, 9, 2**63 - 1]
    assert type(parse_bytes(np.int64(9))) is int


def test_node_of_degree_200_000():
    """Ginex overran a buffer at 32 k neighbors."""
    size = 200_000
    leaf = torch.arange(1, size + 1)
    graph = TemporalGraph.from_events(
        EventBatch(torch.zeros_like(leaf), leaf, leaf - 1), "directed"
    )
    t = torch.tensor([1, 5, 123_457, size, 2 * size])
    hub, end = torch.zeros_like(t), t.clamp(max=size)[:, None]
    expected = (end - 1 - torch.arange(8)).clamp(min=-1)
    assert torch.equal(recent_neighbors(graph, hub, t, 8).eid, expected)
    drawn = uniform_neighbors(graph, hub, t, 8, key=3)
    assert drawn.count.tolist() == [1, 5, 8, 8, 8]
    assert (drawn.eid[2:, :-1] > drawn.eid[2:, 1:]).all()
    assert (drawn.eid < end).all()
