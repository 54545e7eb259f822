"""Runs every kernel once on small data against the CPU, under compute-sanitizer in `make gpu`.

Run as `python tests/helpers/small_run.py [DEVICE] [--no-capture]`; ends with the kernels' sources
and "all equal".
"""

import sys

import torch

import tgflow as tg
from benchmarks.own import Task, own_tgat, own_tgn
from helpers.kernels import AttentionCase, check_close, gru_results
from helpers.strategies import SAMPLERS, hub_events
from tgflow import EventBatch, TemporalGraph
from tgflow.cuda import sources
from tgflow.cuda.device import device_of
from tgflow.cuda.row_lists import row_lists
from tgflow.graph.sampling import sample_neighbors
from tgflow.nn import NodeMemory, aggregate
from tgflow.nn._native import KernelBackend, keep_factors
from tgflow.nn.attention import attend


def run(gpu, capture=True):
    """Insert, change, compact and sample; raises if an answer differs from the CPU's.

    `capture`: Whether training replays CUDA graphs; torch cannot without its caching allocator.
    """
    events = hub_events(4_500, 40, 0)  # the last batch is a large one
    graphs = [TemporalGraph(), TemporalGraph(device=gpu, device_budget="32KB")]
    for graph in graphs:
        graph.append(events[:1_000])
        graph.append(events[1_000:2_000])
        graph.delete(torch.arange(0, 2_000, 7))
        graph.append(events[500:600], allow_late=True)
        graph.retain(max_count=150)
        graph.compact()
        graph.append(events[2_000:])
    compare(graphs)
    gather_rows(gpu)
    gather_cached(gpu)
    train(gpu, capture)
    keep_memory(gpu)
    compute_models(gpu)
    assert graphs[0].stats().num_entries == graphs[1].stats().num_entries


def gather_rows(gpu):
    """Gather and scatter rows of every kernel width, in both readable placements."""
    ids = torch.arange(-1, 300).flip(0)
    for row_bytes in (1, 2, 4, 8, 16, 400, 690):
        rows = torch.arange(300 * row_bytes).to(torch.uint8).view(300, row_bytes)
        expected = torch.cat([rows, torch.zeros_like(rows[:1])])[ids]
        for placement in ("device", "uva"):
            table = tg.tables.FeatureTable.from_tensor(rows, placement=placement, device=gpu)
            there = ids.to(gpu.device)
            assert torch.equal(table[there].cpu(), expected), (placement, row_bytes)
            table.scatter_(there[:-1], rows.to(there.device))  # in reverse
            assert torch.equal(table[there[:-1]].cpu(), rows), (placement, row_bytes)
            table.close()


def gather_cached(gpu):
    """Check caches for rows of every width against the table and a second cache."""
    for dim in (1, 2, 4, 8, 16, 690):
        rows = torch.arange(200 * dim).to(torch.uint8).view(200, dim)
        table = tg.tables.FeatureTable.from_tensor(rows, placement="uva", device=gpu)
        caches = [tg.cache.cached(table, rows=40, device=gpu) for _ in range(2)]
        padded = torch.cat([rows, torch.zeros_like(rows[:1])])
        for step in range(4):
            ids = torch.arange(-1, 150, step + 1) % 90
            for cache in caches:
                assert torch.equal(cache.gather(ids.to(gpu.device)).cpu(), padded[ids])
                cache.preload(ids[:20])
        held, twins = (cache.contents() for cache in caches)
        assert torch.equal(held, twins), dim


def train(gpu, capture):
    """Train a few batches of both models on the device; losses approximate the CPU's."""
    for make, x_dim in ((own_tgn, 6), (own_tgn, 8), (own_tgat, 6)):
        events = hub_events(400, 40, 0)
        x = torch.randn(len(events), x_dim, generator=torch.Generator().manual_seed(1))
        events = EventBatch(events.src, events.dst + 40, events.t, x)
        task = Task(events, 200, batch_size=20, dim=8, neighbors=3, dropout=0.0)
        runs = make(task, 0), make(task, 0, gpu, capture)
        for own in runs:
            if own.learner.model.state is not None:
                own.learner.model.state.keep_past(25)
        expected, found = (torch.tensor(own.train(8)) for own in runs)
        assert torch.allclose(found, expected, rtol=1e-3, atol=1e-3), (make, found, expected)


def keep_memory(gpu):
    """Check memory of both widths after few and many messages, with last and mean."""
    events = hub_events(2_100, 40, 0)
    for width in (8, 5):
        x = torch.randn(4_200, width, generator=torch.Generator().manual_seed(width))
        memories = NodeMemory(width, width), NodeMemory(width, width).to(gpu.device)
        for memory in memories:
            memory.keep_past(50)
            leave_messages(memory, events, x)
        expected, found = (memory.state_dict() for memory in memories)
        for name, state in expected.items():
            assert torch.equal(found[name].cpu(), state), (name, width)


def leave_messages(memory, events, x):
    """Store messages of events, in a large and a small batch."""
    at = memory.clock.device
    with memory.covering(100):
        for size, aggregator in ((len(events.t), "mean"), (30, "last"), (40, "mean")):
            columns = (events.src[:size], events.dst[:size], events.t[:size], x[: 2 * size])
            mail = aggregate(*(column.to(at) for column in columns), aggregator)
            rows = memory.read(mail.node, torch.full_like(mail.node, 100))
            memory.write(mail.node, rows.memory + 1, mail.t, mail.x, mail.t, size, mail.is_last)


def compute_models(gpu):
    """Check model kernels at widths read by 4 and by 1 against the core."""
    for width in (8, 5):
        case = AttentionCase.made(40, 3, (width, width, width), below=4)
        check_close(case.to(gpu.device).results(attend), case.results(attend))
        check_close(gru_results(width, 0, gpu.device), gru_results(width, 0))
        key = torch.tensor([width])
        found, expected = (keep_factors(x, 0.5, (2, 40)) for x in (key.to(gpu.device), key))
        assert torch.equal(found.cpu(), expected)
        compare_sums(gpu, width)


def compare_sums(gpu, width):
    """Check sums of gathered rows into their sources: many to two, none to others."""
    rows, row = torch.ones(180, width), torch.arange(180) % 2 * 5
    out = torch.empty(7, width, device=gpu.device)
    lists = row_lists(row.to(gpu.device), 7)
    KernelBackend(gpu.kernels).sum_lists(rows=rows.to(gpu.device), lists=lists, out=out)
    assert out[:, 0].tolist() == [90.0, 0, 0, 0, 0, 90.0, 0]


def compare(graphs):
    """Check every sampler with few and many neighbors, with and without a filter."""
    nodes = torch.arange(-1, 42).repeat(3)
    t = torch.arange(len(nodes)) * 14
    for sampler in SAMPLERS:
        for k, relations in ((4, None), (30, None), (4, [0, 2])):
            expected, got = (ask(graph, sampler, nodes, t, k, relations) for graph in graphs)
            assert torch.equal(got.cpu(), expected), (sampler, k, relations)


def ask(graph, sampler, nodes, t, k, relations):
    """Return nodes, times and events, int64 `[3, Q, k]`."""
    nodes, t = nodes.to(graph.device), t.to(graph.device)
    found = sample_neighbors(graph, sampler, nodes, t, k, key=5, relations=relations)
    return torch.stack((found.nodes, found.t, found.eid))


if __name__ == "__main__":
    named = [word for word in sys.argv[1:] if not word.startswith("--")]
    run(device_of(torch.device(*named or ["cuda"])), capture="--no-capture" not in sys.argv)
    print(*sorted({path.name for path in sources.kernels().values()}), "all equal", sep="\n")
