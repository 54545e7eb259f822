"""How fast tables give rows, by placement: beside torch on the CPU, and to a GPU over its bus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from benchmarks.race import take_turns
from tgflow import _core
from tgflow.bench.row import Params, Row
from tgflow.bench.setup import Options
from tgflow.cache import cached
from tgflow.tables import FeatureTable

if TYPE_CHECKING:
    from tgflow.cuda.device import Device

WIDTHS = (100, 172)
CALL = 12_000
"""Rows of a gather on the CPU: those of a batch of two hops."""
GPU_CALL = 60_000
GPU_BYTES = 8 << 30
SMALL_CALL = 4_000
"""Rows of a gather for a small batch."""
HIT_RATE, TIMES_THREE = 0.9, 3.0
CACHED = 1_000_000
"""Rows that the cache holds, at most a tenth of the table."""
NUM_ROWS = 1_000_000
COPIED = 1 << 28

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
    """Random rows beside torch's two ways, in turns."""
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
    """Random rows of a table in host memory, to a GPU: read in place, staged, and by torch."""
    uva = large_table(dim, gpu, 1 << 20 if options.quick else GPU_BYTES)
    x, device, calls = uva.read(0, len(uva)), gpu.device, 3 if options.quick else 20
    ids = random_ids(len(uva), GPU_CALL, calls)
    there = [each.to(device) for each in ids]
    out = torch.empty(GPU_CALL, dim, device=device)
    pinned = torch.empty(GPU_CALL, dim, pin_memory=out.is_cuda)

    def staged(i: int) -> None:
        _core.gather_rows(x, dim * 4, len(x), ids[i], pinned)
        out.copy_(pinned, non_blocking=True)

    methods: dict[str, Gather] = {
        "uva": lambda i: uva.gather(there[i], out),
        "staged": staged,
        "indexing": lambda i: x[ids[i]].to(device),
    }
    check_alike(methods, out, x[ids[0]])
    seconds = take_turns(methods, calls, options.rounds, device.type)
    speeds = {name: GPU_CALL * calls / float(s.sum()) for name, s in seconds.items()}
    size = f"{x.nbytes / 1e9:.0f} GB"
    params: Params = {"placement": "uva", "dim": dim, "ids": GPU_CALL, "table": size}
    goals = {"staged": 1.3, "indexing": 4.0}
    for name in list(methods)[1:]:
        sized = {**params, "beside": name}
        yield Row("gather rows", speeds["uva"], "rows/s", sized, None, speeds[name], goals[name])
    share = speeds["uva"] * dim * 4 / copy_speed(device, options.quick)
    yield Row("bus in use", share, "of pinned copy", params, 0.6)
    for call in (SMALL_CALL, GPU_CALL):
        yield from cached_rows(uva, gpu, options, call)
    uva.close()
    yield bandwidth_row(dim, gpu, options)


def bandwidth_row(dim: int, gpu: Device, options: Options) -> Row:
    """What a gather from the GPU's own memory makes of its bandwidth, which a copy has all of."""
    rows = torch.rand((1 << 20 if options.quick else 1 << 30) // (4 * dim), dim)
    table = FeatureTable.from_tensor(rows, placement="device", device=gpu)
    calls = 3 if options.quick else 20
    there = [ids.to(gpu.device) for ids in random_ids(len(table), GPU_CALL, calls)]
    out = torch.empty(GPU_CALL, dim, device=gpu.device)
    whole = table.gather(torch.arange(len(table), device=gpu.device))
    twin = torch.empty_like(whole)  # larger than any cache
    methods: dict[str, Gather] = {
        "device": lambda i: table.gather(there[i], out),
        "copy": lambda i: twin.copy_(whole),
    }
    check_alike({"device": methods["device"]}, out, rows[there[0].cpu()])
    seconds = take_turns(methods, calls, options.rounds, gpu.device.type)
    table.close()
    copied_s = float(seconds["copy"].min()) / len(whole) * GPU_CALL
    share = copied_s / float(seconds["device"].median())
    params: Params = {"placement": "device", "dim": dim, "ids": GPU_CALL}
    return Row("memory bandwidth in use", share, "of a copy", params, 0.8)


def large_table(dim: int, gpu: Device, num_bytes: int) -> FeatureTable:
    """Return a table of so many bytes, read in place."""
    made = FeatureTable(dim, placement="uva", device=gpu)
    part = torch.rand(min(num_bytes, 1 << 28) // (4 * dim), dim)
    while len(made) * dim * 4 < num_bytes:
        made.append(part)
    return made


def check_alike(methods: dict[str, Gather], out: Tensor, expected: Tensor) -> None:
    """Compare the rows that each method gives; it returns them or leaves them in `out`."""
    for name, method in methods.items():
        given = method(0)
        found = given if isinstance(given, Tensor) else out
        if not torch.equal(found.cpu(), expected):
            raise RuntimeError(f"{name} gives other rows")


def copy_speed(device: torch.device, quick: bool) -> float:
    """Return bytes a second of copies from pinned memory."""
    source = torch.empty(COPIED >> (8 if quick else 0), dtype=torch.uint8)
    if device.type == "cuda":
        source = source.pin_memory()
    target = torch.empty_like(source, device=device)
    copy: dict[str, Gather] = {"copy": lambda _: target.copy_(source, non_blocking=True)}
    return len(source) / float(take_turns(copy, 5, 2, device.type)["copy"].min())


def cached_rows(table: FeatureTable, gpu: Device, options: Options, call: int) -> Iterator[Row]:
    """Gather rows of `table`, in pinned memory, through a cache that has nine in ten of them.

    Each call has its own ids. The CPU gathers to a pinned buffer, which is copied to the GPU.
    """
    device, size = gpu.device, len(table)
    cache = cached(table, rows=min(CACHED, size // 10), device=gpu)
    calls = 3 if options.quick else 20
    hot, ids = ids_of_calls(2 * calls, cache.capacity, size, call)
    there = [each.to(device) for each in ids]
    cache.preload(torch.arange(cache.capacity, device=device))
    cache.preload(hot.to(device))
    out = torch.empty(call, table.dim, device=device)
    staging = torch.empty(call, table.dim, pin_memory=out.is_cuda)

    def uncached(i: int) -> Tensor:
        table.gather(ids[i], staging)
        return out.copy_(staging, non_blocking=True)

    check_alike({"the cache": lambda i: cache.gather(there[i])}, out, table.gather(ids[0]))
    for each in there[calls:]:  # contents as they are after a while
        cache.gather(each, out)
    cache.reset_counters()
    methods = {
        "cached": lambda i: cache.gather(there[i], out),
        "uva": lambda i: table.gather(there[i], out),
        "host": uncached,
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
    name = "gather through a cache on the GPU"
    yield Row(name, speeds["cached"], "rows/s", params, None, speeds["host"], TIMES_THREE)
    name = "gather through a cache, over plain uva"
    yield Row(name, speeds["cached"], "rows/s", params, None, speeds["uva"], 1.0)


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
