"""Runs every kernel once on small data against the CPU, under compute-sanitizer in `make gpu`.

Run as `python tests/helpers/small_run.py [DEVICE] [--no-capture]`; ends with the kernels' sources
and "all equal".
"""

import math
import sys
from typing import Any

import torch
from torch import Tensor

import tgflow as tg
from benchmarks.own import Task, own_tgat, own_tgn
from tgflow import EventBatch, Sampler, TemporalGraph, _core
from tgflow.cuda import sources
from tgflow.cuda.device import Device, device_of
from tgflow.cuda.row_lists import row_lists
from tgflow.graph.sampling import sample_neighbors
from tgflow.nn import NodeMemory, aggregate
from tgflow.nn._native import KernelBackend, gru_step

SAMPLERS = [
    Sampler.recent(),
    Sampler.uniform(),
    Sampler.window(width=300),
    Sampler.decayed(half_life=40),
]


def run(device: str | Device, capture: bool = True) -> None:
    """Insert, change, compact and sample; raises if an answer differs from the CPU's.

    `capture`: Whether training replays CUDA graphs; torch cannot without its caching allocator.
    """
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
    train(device, capture)
    keep_memory(device)
    compute_models(device)
    assert graphs[0].stats().num_entries == graphs[1].stats().num_entries


def gather_rows(device: str | Device) -> None:
    """Gather and scatter rows of every kernel width, in both readable placements."""
    ids = torch.arange(-1, 300).flip(0)
    for row_bytes in (1, 2, 4, 8, 16, 400, 690):
        rows = torch.arange(300 * row_bytes).to(torch.uint8).view(300, row_bytes)
        expected = torch.cat([rows, torch.zeros_like(rows[:1])])[ids]
        for placement in ("device", "uva"):
            table = tg.tables.FeatureTable.from_tensor(rows, placement=placement, device=device)
            there = ids.to(device if isinstance(device, str) else device.device)
            assert torch.equal(table[there].cpu(), expected), (placement, row_bytes)
            table.close()


def on_of(cache: tg.cache.CachedTable, device: str | Device) -> torch.device:
    """Device of the ids of a cache."""
    if cache.gpu is None:
        return torch.device("cpu")
    return torch.device(device) if isinstance(device, str) else device.device


def gather_cached(device: str | Device) -> None:
    """Check caches for rows of every width against the table and a second cache."""
    for dim in (1, 2, 4, 8, 16, 690):
        rows = torch.arange(200 * dim).to(torch.uint8).view(200, dim)
        table = tg.tables.FeatureTable.from_tensor(rows, placement="uva", device=device)
        caches = [tg.cache.cached(table, rows=40, device=device) for _ in range(2)]
        padded = torch.cat([rows, torch.zeros_like(rows[:1])])
        for step in range(4):
            ids = torch.arange(-1, 150, step + 1) % 90
            for cache in caches:
                assert torch.equal(cache.gather(ids.to(on_of(cache, device))).cpu(), padded[ids])
                cache.preload(ids[:20])
        held, twins = (cache.contents() for cache in caches)
        assert torch.equal(held, twins), dim


def train(device: str | Device, capture: bool) -> None:
    """Train a few batches of both models on the device; losses approximate the CPU's."""
    for make, x_dim in ((own_tgn, 6), (own_tgn, 8), (own_tgat, 6)):
        events = some_events(400)
        x = torch.randn(len(events), x_dim, generator=torch.Generator().manual_seed(1))
        events = EventBatch(events.src, events.dst + 40, events.t, x)
        task = Task(events, 200, batch_size=20, dim=8, neighbors=3, dropout=0.0)
        runs = make(task, 0), make(task, 0, device, capture)
        for own in runs:
            if own.learner.model.state is not None:
                own.learner.model.state.keep_past(25)
        expected, found = (torch.tensor(own.train(8)) for own in runs)
        assert torch.allclose(found, expected, rtol=1e-3, atol=1e-3), (make, found, expected)


def keep_memory(device: str | Device) -> None:
    """Check memory of both widths after few and many messages, with last and mean."""
    place = torch.device(device) if isinstance(device, str) else device.device
    events = some_events(2_100)
    for width in (8, 5):
        x = torch.randn(4_200, width, generator=torch.Generator().manual_seed(width))
        memories = NodeMemory(width, width), NodeMemory(width, width).to(place)
        for memory in memories:
            memory.keep_past(50)
            leave_messages(memory, events, x)
        expected, found = (memory.state_dict() for memory in memories)
        for name, state in expected.items():
            assert torch.equal(found[name].cpu(), state), (name, width)


def leave_messages(memory: NodeMemory, events: EventBatch, x: Tensor) -> None:
    """Store messages of events, in a large and a small batch."""
    at = memory.clock.device
    with memory.covering(100):
        for size, aggregator in ((len(events.t), "mean"), (30, "last"), (40, "mean")):
            columns = (events.src[:size], events.dst[:size], events.t[:size], x[: 2 * size])
            mail = aggregate(*(column.to(at) for column in columns), aggregator)
            rows = memory.read(mail.node, torch.full_like(mail.node, 100))
            memory.write(mail.node, rows.memory + 1, mail.t, mail.x, mail.t, size, mail.is_last)


def compute_models(device: str | Device) -> None:
    """Check model kernels at widths read by 4 and by 1 against the core."""
    gpu = device_of(torch.empty(0, device=device).device) if isinstance(device, str) else device
    for width in (8, 5):
        calls = model_calls(width)
        results = []
        for backend, place in ((_core, "cpu"), (KernelBackend(gpu.kernels), gpu.device)):
            found: list[Tensor] = []
            for name, given, out in calls:
                moved = {
                    key: x if key == "rate" else x.to(place, copy=True) for key, x in given.items()
                }
                filled = {key: torch.zeros(x, device=place) for key, x in out.items()}
                getattr(backend, name)(**moved, **filled)
                found += [x.cpu() for x in filled.values()]
            results.append(found + step_gru(place, width))
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
        compare_sums(gpu, width)


def some(*shape: int) -> Tensor:
    return torch.linspace(-1, 1, math.prod(shape)).sin().view(shape).contiguous()


def step_gru(place: torch.device | str, width: int) -> list[Tensor]:
    """Return the memory after a GRU step, and the gradients of its gates and input."""
    gates = some(40, 3 * width).to(place).requires_grad_()
    own, memory = some(40, width).to(place).requires_grad_(), some(40, width).to(place)
    out = gru_step(gates + 0, own, memory)  # a kernel overwrites the gates that it is given
    out.backward(some(40, width).to(place))
    assert gates.grad is not None
    assert own.grad is not None
    return [out.detach().cpu(), gates.grad.cpu(), own.grad.cpu()]


def model_calls(width: int) -> list[tuple[str, dict[str, Any], dict[str, tuple[int, ...]]]]:
    """Name, arguments and result shapes of each call; a row of neighbors is shared."""
    n, k, heads = 40, 3, 2
    rows = torch.zeros(n, k, dtype=torch.int64)
    inputs = {
        "query": some(heads, n, 3 * width), "below": some(4, width), "neighbor": rows,
        "edge_table": some(4, width), "edge_row": rows + 1, "mask": some(n, k) > -0.8,
        "dt": some(n, k) * 40, "frequency": some(width), "keep": some(heads, n, k),
    }  # fmt: skip
    per_head, weight = {"grad_total": some(heads, n)}, some(heads, n, k).abs()
    return [
        ("keep_factors", {"key": rows[0, :1], "rate": 0.5}, {"out": (heads, n)}),
        (
            "attend",
            inputs,
            {"weight": (heads, n, k), "inputs": (heads, n, 3 * width), "total": (heads, n)},
        ),
        (
            "attend_backward",
            {**inputs, **per_head, "weight": weight, "grad_inputs": some(heads, n, 3 * width)},
            {"grad_query": (heads, n, 3 * width), "grad_below": (4, width)},
        ),
    ]  # fmt: skip


def compare_sums(gpu: Device, width: int) -> None:
    """Check sums of gathered rows into their sources: many to two, none to others."""
    rows, row = torch.ones(180, width), torch.arange(180) % 2 * 5
    out = torch.empty(7, width, device=gpu.device)
    lists = row_lists(row.to(gpu.device), 7)
    KernelBackend(gpu.kernels).sum_lists(rows=rows.to(gpu.device), lists=lists, out=out)
    assert out[:, 0].tolist() == [90.0, 0, 0, 0, 0, 90.0, 0]


def some_events(size: int) -> EventBatch:
    """Return events with hubs, self-loops, ties and relations."""
    generator = torch.Generator().manual_seed(0)
    ends = torch.rand(2, size, generator=generator).pow(3).mul(40).long()
    t = torch.randint(0, 2, (size,), generator=generator).cumsum(0)
    return EventBatch(*ends.unbind(0), t, relation=torch.arange(size) % 3)


def compare(graphs: list[TemporalGraph]) -> None:
    """Check every sampler with few and many neighbors, with and without a filter."""
    nodes = torch.arange(-1, 42).repeat(3)
    t = torch.arange(len(nodes)) * 14
    for sampler in SAMPLERS:
        for k, relations in ((4, None), (30, None), (4, [0, 2])):
            expected, got = (ask(graph, sampler, nodes, t, k, relations) for graph in graphs)
            assert torch.equal(got.cpu(), expected), (sampler, k, relations)


def ask(
    graph: TemporalGraph,
    sampler: Sampler,
    nodes: Tensor,
    t: Tensor,
    k: int,
    relations: list[int] | None,
) -> Tensor:
    """Return nodes, times and events, int64 `[3, Q, k]`."""
    nodes, t = nodes.to(graph.device), t.to(graph.device)
    found = sample_neighbors(graph, sampler, nodes, t, k, key=5, relations=relations)
    return torch.stack((found.nodes, found.t, found.eid))


if __name__ == "__main__":
    named = [word for word in sys.argv[1:] if not word.startswith("--")]
    run(*named or ["cuda"], capture="--no-capture" not in sys.argv)
    print(*sorted({path.name for path in sources.kernels().values()}), "all equal", sep="\n")
