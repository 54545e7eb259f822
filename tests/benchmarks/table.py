"""Gather speed of tables by placement: against torch on the CPU, and over the bus to a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from benchmarks.options import Options
from benchmarks.race import take_turns
from benchmarks.results import Params, Row
from tgflow import _core
from tgflow.graph.cache import cached
from tgflow.graph.tables import FeatureTable

if TYPE_CHECKING:
    from tgflow.cuda.device import Device

WIDTHS = (100, 172)
CALL, GPU_CALL, SMALL_CALL = 12_000, 60_000, 4_000
"""Rows per gather: two-hop batch on the CPU and on a GPU, and a small batch."""
HIT_RATE = 0.9
CACHED = 1_000_000
"""Rows in the cache, at most a tenth of the table."""
NUM_ROWS = 1_000_000

Gather = Callable[[int], object]


def run(options: Options) -> list[Row]:
    """Measure every placement that this machine has."""
    rows = []
    for dim in () if options.only_device else WIDTHS:
        options.say(f"host memory, {dim} floats")
        rows += list(host_rows(dim, options))
    if options.devices[-1] != "cpu":
        from tgflow.cuda.device import Device

        gpu = Device(torch.device(options.devices[-1]))
        for dim in (*WIDTHS, 128):
            options.say(f"{gpu.device}, {dim} floats")
            rows += list(gpu_rows(dim, gpu, options))
    return rows


def host_rows(dim: int, options: Options) -> Iterator[Row]:
    """Gather random rows against both methods of torch, in turns."""
    x = torch.rand(NUM_ROWS // 10 if options.quick else NUM_ROWS, dim)
    ours, out = FeatureTable.from_tensor(x), torch.empty(CALL, dim)
    calls = 3 if options.quick else 20
    ids = random_ids(len(x), CALL, calls)
    methods: dict[str, Gather] = {
        "tgflow": lambda i: ours.gather(ids[i], out),
        "index_select": lambda i: torch.index_select(x, 0, ids[i], out=out),
        "indexing": lambda i: x[ids[i]],
    }
    seconds = take_turns(methods, calls, options.rounds)
    speeds = {name: CALL * calls / float(s.sum()) for name, s in seconds.items()}
    params: Params = {"placement": "host", "dim": dim, "ids": CALL, "threads": _core.num_threads()}
    for name, least in (("index_select", 0.95), ("indexing", 3.0)):
        sized = {**params, "beside": name}
        yield Row("gather rows", speeds["tgflow"], "rows/s", sized, None, speeds[name], least)


def random_ids(num_rows: int, size: int, calls: int) -> list[Tensor]:
    """Return ids of random rows for each call, int64 `[size]`."""
    generator = torch.Generator().manual_seed(num_rows)
    return [torch.randint(num_rows, (size,), generator=generator) for _ in range(calls)]


def gpu_rows(dim: int, gpu: Device, options: Options) -> Iterator[Row]:
    """Gather from host memory against a copy over the bus, through a cache, and on the GPU."""
    uva = large_table(dim, gpu, 1 << 20 if options.quick else 8 << 30)
    yield share_of_copy("bus in use", "of pinned copy", 0.6, uva, gpu, options)
    for call in (SMALL_CALL, GPU_CALL):
        yield cached_row(uva, gpu, options, call)
    uva.close()
    rows = torch.rand((1 << 20 if options.quick else 1 << 30) // (4 * dim), dim)
    table = FeatureTable.from_tensor(rows, placement="device", device=gpu)
    yield share_of_copy("memory bandwidth in use", "of a copy", 0.8, table, gpu, options)
    table.close()


def large_table(dim: int, gpu: Device, num_bytes: int) -> FeatureTable:
    """Return a table in pinned host memory of about `num_bytes`."""
    made = FeatureTable(dim, placement="uva", device=gpu)
    part = torch.rand(min(num_bytes, 1 << 28) // (4 * dim), dim)
    while len(made) * dim * 4 < num_bytes:
        made.append(part)
    return made


def share_of_copy(
    name: str, unit: str, target: float, table: FeatureTable, gpu: Device, options: Options
) -> Row:
    """Return the speed of gathering random rows, as a share of copying them in order."""
    calls, dim = 3 if options.quick else 20, table.dim
    there = [ids.to(gpu.device) for ids in random_ids(len(table), GPU_CALL, calls)]
    source = torch.rand((1 << 20 if options.quick else 1 << 28) // (4 * dim), dim)
    source = source.to(gpu.device) if table.placement == "device" else pinned(source, gpu)
    out, target_of_copy = (
        torch.empty(size, dim, device=gpu.device) for size in (GPU_CALL, len(source))
    )
    methods: dict[str, Gather] = {
        "gather": lambda i: table.gather(there[i], out),
        "copy": lambda i: target_of_copy.copy_(source, non_blocking=True),
    }
    methods["gather"](0)
    check_alike(name, out, table.read(0, len(table))[there[0].cpu()])
    seconds = take_turns(methods, calls, options.rounds, gpu.device.type)
    copied_s = float(seconds["copy"].min()) / len(source) * GPU_CALL
    params: Params = {"placement": table.placement, "dim": dim, "ids": GPU_CALL}
    return Row(name, copied_s / float(seconds["gather"].median()), unit, params, target)


def pinned(x: Tensor, gpu: Device) -> Tensor:
    """Return a tensor in pinned memory, if there is a real GPU."""
    return x.pin_memory() if gpu.device.type == "cuda" else x


def check_alike(name: str, found: Tensor, expected: Tensor) -> None:
    """Raise RuntimeError unless rows are equal."""
    if not torch.equal(found.cpu(), expected.cpu()):
        raise RuntimeError(f"{name} gives other rows")


def cached_row(table: FeatureTable, gpu: Device, options: Options, call: int) -> Row:
    """Gather rows of `table`, in pinned memory, through a cache with a hit rate of nine in ten.

    Each call has its own ids.
    """
    device, size = gpu.device, len(table)
    cache = cached(table, rows=min(CACHED, size // 10), device=gpu)
    calls = 3 if options.quick else 20
    hot, ids = ids_of_calls(2 * calls, cache.capacity, size, call)
    there = [each.to(device) for each in ids]
    cache.preload(torch.arange(cache.capacity, device=device))
    cache.preload(hot.to(device))
    out = torch.empty(call, table.dim, device=device)
    check_alike("the cache", cache.gather(there[0]), table.gather(ids[0]))
    for each in there[calls:]:  # contents after a warm-up
        cache.gather(each, out)
    cache.reset_counters()
    methods: dict[str, Gather] = {
        "cached": lambda i: cache.gather(there[i], out),
        "uva": lambda i: table.gather(there[i], out),
    }
    seconds = take_turns(methods, calls, 1, device.type)
    speeds = {name: call / float(each.median()) for name, each in seconds.items()}
    params: Params = {
        "dim": table.dim,
        "ids": call,
        "rows": cache.capacity,
        "table rows": size,
        "hit rate": round(cache.counters.hit_rate, 3),
    }
    name = "gather through a cache, over plain uva"
    return Row(name, speeds["cached"], "rows/s", params, None, speeds["uva"], 1.0)


def ids_of_calls(num: int, capacity: int, size: int, num_ids: int) -> tuple[Tensor, list[Tensor]]:
    """Return a hot set of half of the cache, scattered over the table, and the ids of each call.

    A call has distinct hot ids, a share of `HIT_RATE`, and random cold ones, shuffled.
    """
    generator = torch.Generator().manual_seed(0)
    num_hot = round(num_ids * HIT_RATE)
    hot = torch.randperm(size, generator=generator)[: max(capacity // 2, num_hot)]
    calls = []
    for _ in range(num):
        chosen = hot[torch.randperm(len(hot), generator=generator)[:num_hot]]
        cold = torch.randint(size, (num_ids - num_hot,), generator=generator)
        both = torch.cat([chosen, cold])
        calls.append(both[torch.randperm(num_ids, generator=generator)])
    return hot, calls
