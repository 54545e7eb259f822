"""A graph on a GPU (emulated, or real if available) matches the same graph on the CPU."""

import pytest
import torch

from helpers import small_run
from helpers.devices import for_each_gpu, needs_apart, on_cpu, opened
from helpers.effort import cases
from helpers.emulator.device import EmulatedDevice
from helpers.strategies import SAMPLERS, graph_events, hub_events
from tgflow import EventBatch, TemporalGraph
from tgflow.cuda import sources
from tgflow.cuda.device import register_device
from tgflow.graph.sampling import sample_neighbors


def twins(gpu, budget, **how):
    """The same empty graph on the CPU and, with a budget, on the GPU."""
    return [TemporalGraph(**how), TemporalGraph(device=opened(gpu), device_budget=budget, **how)]


def assert_alike(graphs, seed=0, num_nodes=60):
    """Every sampler agrees at random cutoffs, with and without a filter."""
    generator = torch.Generator().manual_seed(seed)
    size = graphs[0].num_events
    nodes = torch.randint(-1, num_nodes, (150,), generator=generator)
    t = torch.randint(-1, (graphs[0].log.t_last or 0) + 2, (150,), generator=generator)
    before = torch.randint(0, size + 2, (150,), generator=generator)
    for sampler in SAMPLERS:
        for k, relations in ((3, None), (20, None), (5, (0, 2))):
            found = []
            for graph in graphs:
                queries = (column.to(graph.device) for column in (nodes, t))
                limits = before.to(graph.device)
                options = {"key": seed, "as_of": limits, "relations": relations}
                found.append(on_cpu(sample_neighbors(graph, sampler, *queries, k, **options)))
            for name in ("nodes", "t", "eid", "count"):
                assert torch.equal(*(getattr(rows, name) for rows in found)), (sampler, k, name)


@for_each_gpu
@pytest.mark.parametrize("budget", cases([None, 4096, 100_000], [4096]))
@pytest.mark.parametrize("direction", cases(["undirected", "directed"], ["undirected"]))
def test_graph_after_all_mutations_matches_the_cpu(gpu, budget, direction):
    """Long chains of blocks, so that one change makes several blocks of a node."""
    events = hub_events(6_000, 60, seed=1)
    graphs = twins(gpu, budget, direction=direction)
    chosen = torch.randperm(3_000, generator=torch.Generator().manual_seed(2))[:900]
    late = EventBatch(
        *(c[500:800].contiguous() for c in (events.src, events.dst)),
        events.t[500:800],
        relation=events.relation[500:800],
    )
    steps = [
        lambda graph: graph.append(events[:1500]),
        lambda graph: graph.append(events[1500:3000]),
        lambda graph: graph.delete(chosen),
        lambda graph: graph.append(late, allow_late=True),
        lambda graph: graph.append(events[3000:3700]),
        lambda graph: graph.delete_pair(0, 1),
        lambda graph: graph.retain(max_count=400),
        lambda graph: graph.compact(),
        lambda graph: graph.append(events[3700:]),
        lambda graph: graph.delete_node(3),
        lambda graph: graph.retain(max_age=2000),
        lambda graph: graph.compact(),
    ]
    for number, step in enumerate(steps):
        answers = [step(graph) for graph in graphs]
        assert answers[0] == answers[1], f"step {number}"
        assert graphs[0].num_events == graphs[1].num_events
        assert graphs[0].stats().num_entries == graphs[1].stats().num_entries, f"step {number}"
        assert_alike(graphs, seed=number)


@for_each_gpu
def test_compaction_releases_memory(gpu):
    events = hub_events(20_000, 50, seed=6)
    graph = TemporalGraph(device=opened(gpu), device_budget="40KB")
    graph.append(events)
    before = graph.stats()
    graph.retain(max_count=5)
    graph.compact()
    after = graph.stats()
    assert sum(tier.bytes for tier in after.tiers) < sum(t.bytes for t in before.tiers) / 5
    graphs = [TemporalGraph(), graph]
    graphs[0].append(events)
    graphs[0].retain(max_count=5)
    graphs[0].compact()
    assert_alike(graphs)


def test_out_of_memory_keeps_log_and_store_consistent():
    gpu = EmulatedDevice()
    graph = TemporalGraph(device=gpu)
    graph.append(graph_events((0, 1, 0)))
    gpu.device_bytes = 0
    with pytest.raises(MemoryError, match=r"asked emulated for \d+ bytes"):
        graph.append(EventBatch(*torch.arange(300_000).expand(3, -1)))
    assert len(graph.log) == graph.num_events == 1
    gpu.device_bytes = 1 << 30
    assert graph.append(graph_events((1, 2, 3))) == 1
    assert graph.stats().num_entries == 4


@for_each_gpu
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: sampler.strategy)
def test_every_neighbor_is_counted_for_its_tier(gpu, sampler):
    graph = TemporalGraph(device=opened(gpu), device_budget="40KB")
    graph.append(hub_events(6_000, 60, seed=1))
    nodes = torch.arange(60, device=graph.device)
    found = sample_neighbors(graph, sampler, nodes, torch.full_like(nodes, 2000), 9, key=1)
    device, host = graph.stats().tiers
    assert sum(graph.backend.stats().reads) == int(found.count.sum())
    assert device.hit_rate + host.hit_rate == pytest.approx(1)
    assert min(device.hit_rate, host.hit_rate) > 0


@pytest.mark.slow
@needs_apart[0]
def test_small_run_launches_every_kernel():
    """compute-sanitizer checks this run on a machine with a GPU."""
    gpu = EmulatedDevice.apart()
    register_device(gpu)
    with torch.autograd.set_multithreading_enabled(False):  # it has no autograd thread
        small_run.run(gpu)
    assert set(gpu.kernels.launches) == set(sources.kernels())
