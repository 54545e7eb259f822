"""Sampling in a CUDA graph: captured once, replayed while the store grows."""

import pytest
import torch

from helpers.devices import needs_cuda
from helpers.strategies import SAMPLERS, hub_events
from tgflow.graph import TemporalGraph
from tgflow.graph.sampling import Neighbors, sample_neighbors

pytestmark = needs_cuda


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: sampler.strategy)
def test_captured_sampler_reads_the_grown_store(sampler):
    events = hub_events(60_000, 3_000, seed=1)
    graph = TemporalGraph(device="cuda")
    graph.append(events[:1_000])
    nodes = torch.arange(3_000, device="cuda")
    t = torch.full_like(nodes, 10**6)
    found = Neighbors.empty(len(nodes), 10, "cuda")
    sample_neighbors(graph, sampler, nodes, t, 10, key=7, out=found)  # compiles
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, capture_error_mode="thread_local"):
        sample_neighbors(graph, sampler, nodes, t, 10, key=7, out=found)
    for start in range(1_000, 60_000, 5_900):  # heads, chunks and directories move meanwhile
        graph.append(events[start : start + 5_900])
        with graph.reading():
            captured.replay()
        expected = sample_neighbors(graph, sampler, nodes, t, 10, key=7)
        for name in ("nodes", "t", "eid", "count"):
            assert torch.equal(getattr(found, name), getattr(expected, name)), (start, name)


@pytest.mark.parametrize("size", [200, 5_000])
def test_append_does_not_block_the_host(size):
    events = hub_events(150_000, 3_000, seed=5)
    graph = TemporalGraph(device="cuda")
    graph.append(events[:50_000])
    torch.cuda.set_sync_debug_mode("error")
    try:
        for start in range(50_000, 150_000, size):
            graph.append(events[start : start + size])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert graph.stats().num_entries == 300_000 - int((events.src == events.dst).sum())
