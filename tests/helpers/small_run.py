"""Every kernel once, on little, against the CPU: what `make gpu` runs under compute-sanitizer.

Run as `python tests/helpers/small_run.py [DEVICE]`; ends with the kernels' sources and "all equal".
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

import tgflow as tg
from tgflow.bench.own import own_tgat, own_tgn
from tgflow.bench.task import Task
from tgflow.cuda import sources
from tgflow.cuda.device import Device
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.sampling import Sampler, sample_neighbors

SAMPLERS = [
    Sampler.recent(),
    Sampler.uniform(),
    Sampler.window(width=300),
    Sampler.decayed(half_life=40),
]


def run(device: str | Device) -> None:
    """Insert, change, compact and sample; raises if an answer differs from the CPU's."""
    events = some_events(4_500)  # the last batch is a large one
    graphs = [TemporalGraph(), TemporalGraph(device=device, device_budget="32KB")]
    for graph in graphs:
        graph.append(events[:1_000])
        graph.append(events[1_000:2_000])
        graph.delete(torch.arange(0, 2_000, 7))
        graph.append(events[500:600], allow_late=True)
        graph.retain(max_count=150)
        graph.compact()
        graph.append(events[2_000:])
    compare(graphs)
    gather_rows(device)
    gather_cached(device)
    train(device)
    assert graphs[0].stats().num_entries == graphs[1].stats().num_entries


def gather_rows(device: str | Device) -> None:
    """Rows of every width that the kernels write in, from both placements that they read."""
    ids = torch.arange(-1, 300).flip(0)
    for row_bytes in (1, 2, 4, 8, 16, 400, 690):
        rows = torch.arange(300 * row_bytes).to(torch.uint8).view(300, row_bytes)
        expected = torch.cat([rows, torch.zeros_like(rows[:1])])[ids]
        for placement in ("device", "uva"):
            table = tg.FeatureTable.from_tensor(rows, placement=placement, device=device)
            there = ids.to(device if isinstance(device, str) else device.device)
            assert torch.equal(table[there].cpu(), expected), (placement, row_bytes)
            table.close()


def on_of(cache: tg.CachedTable, device: str | Device) -> torch.device:
    """Where a cache takes its ids."""
    if cache.placement == "host":
        return torch.device("cpu")
    return torch.device(device) if isinstance(device, str) else device.device


def gather_cached(device: str | Device) -> None:
    """Caches of every policy and of rows of every width, beside the CPU's."""
    for policy in ("lru", "lfu", "fifo", "static"):
        for dim in (1, 2, 4, 8, 16, 690):
            rows = torch.arange(200 * dim).to(torch.uint8).view(200, dim)
            caches = [
                tg.cached(
                    tg.FeatureTable.from_tensor(rows, placement=placement, device=on),
                    rows=40,
                    policy=policy,
                    device=on,
                )
                for placement, on in (("host", None), ("uva", device))
            ]
            for step in range(4):
                ids = torch.arange(-1, 150, step + 1) % 90
                expected, got = (cache.gather(ids.to(on_of(cache, device))) for cache in caches)
                assert torch.equal(got.cpu(), expected), (policy, dim)
                caches[step % 2].preload(ids[:20])
                caches[1 - step % 2].preload(ids[:20])
            held, expected_held = (cache.contents() for cache in caches)
            assert torch.equal(held, expected_held), (policy, dim)
            for cache in caches:
                cache.scatter_(ids[:5], torch.zeros_like(rows[:5]))
                assert not cache.gather(ids[:5].to(on_of(cache, device))).any()


def train(device: str | Device) -> None:
    """A few batches of both models, prepared and learned there: the CPU's losses, nearly."""
    events = some_events(400)
    x = torch.randn(len(events), 6, generator=torch.Generator().manual_seed(1))
    events = EventBatch(events.src, events.dst + 40, events.t, x)
    task = Task(events, 200, batch_size=20, dim=8, neighbors=3, dropout=0.0)
    for make in (own_tgn, own_tgat):
        runs = make(task, 0), make(task, 0, device)
        for own in runs:
            if own.learner.model.state is not None:
                own.learner.model.state.keep_rows(50)
        expected, found = (torch.tensor(own.train(8)) for own in runs)
        assert torch.allclose(found, expected, rtol=1e-3, atol=1e-3), (make, found, expected)


def some_events(size: int) -> EventBatch:
    """Return events with hubs, self-loops, ties and labels."""
    generator = torch.Generator().manual_seed(0)
    ends = torch.rand(2, size, generator=generator).pow(3).mul(40).long()
    t = torch.randint(0, 2, (size,), generator=generator).cumsum(0)
    return EventBatch(*ends.unbind(0), t, label=torch.arange(size) % 3)


def compare(graphs: list[TemporalGraph]) -> None:
    """Ask every sampler for few and for many neighbors, with and without a filter."""
    nodes = torch.arange(-1, 42).repeat(3)
    t = torch.arange(len(nodes)) * 14
    for sampler in SAMPLERS:
        for k, types in ((4, None), (30, None), (4, [0, 2])):
            expected, got = (ask(graph, sampler, nodes, t, k, types) for graph in graphs)
            assert torch.equal(got.cpu(), expected), (sampler, k, types)


def ask(
    graph: TemporalGraph,
    sampler: Sampler,
    nodes: Tensor,
    t: Tensor,
    k: int,
    types: list[int] | None,
) -> Tensor:
    """Return nodes, times and events, int64 `[3, Q, k]`."""
    nodes, t = nodes.to(graph.device), t.to(graph.device)
    found = sample_neighbors(graph, sampler, nodes, t, k, key=5, types=types)
    return torch.stack((found.nodes, found.t, found.eid))


if __name__ == "__main__":
    run(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    print(*sorted({path.name for path in sources.kernels().values()}), "all equal", sep="\n")
