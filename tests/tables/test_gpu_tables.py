"""Tables that kernels read: in the order of streams, and captured once for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from helpers.devices import for_each_gpu, needs_apart, needs_cuda, opened, place_of
from helpers.emulator.device import EmulatedDevice
from helpers.emulator.tensors import watching
from helpers.made_tables import expected_rows, some_rows
from tgflow.cache import cached
from tgflow.cache.device import CachePurpose, Lookup
from tgflow.tables import FeatureTable, host
from tgflow.tables.host import HostRows

apart_only = needs_apart[0]


@dataclass
class Captured:
    """The launches of a call, to be made again as they were: as a CUDA graph does."""

    gpu: EmulatedDevice
    calls: list[tuple] = field(default_factory=list)

    @classmethod
    def of(cls, gpu: EmulatedDevice, call: Callable[[], object]) -> Captured:
        graph, kernels = cls(gpu), gpu.kernels
        gpu.kernels, gpu.captures = graph, True
        try:
            call()
        finally:
            gpu.kernels, gpu.captures = kernels, False
        return graph

    def launch(self, name, blocks, threads, *arguments) -> None:
        copies = [type(each).from_buffer_copy(each) for each in arguments]
        self.calls.append((name, blocks, threads, *copies))

    def replay(self) -> None:
        for call in self.calls:
            self.gpu.kernels.launch(*call)


@pytest.mark.parametrize(
    ("placement", "budget"), [("device", None), ("uva", None), ("auto", 9_000)]
)
def test_a_captured_gather_sees_the_table_grow_and_move(placement, budget):
    gpu, rows = EmulatedDevice(), some_rows(5_000, 8)
    table = FeatureTable(8, placement=placement, device=gpu, budget=budget)
    table.append(rows[:100])
    ids, out = torch.zeros(300, dtype=torch.int64), torch.empty(300, 8)
    graph = Captured.of(gpu, lambda: table.gather(ids, out))
    assert [call[0] for call in graph.calls] == ["gather_by_16"]
    for size in range(400, 5_001, 400):
        table.append(rows[len(table) : size])
        ids.copy_(torch.randint(-1, size, (300,), generator=torch.Generator().manual_seed(size)))
        graph.replay()
        assert torch.equal(out, expected_rows(rows, ids))
    assert table.placement == {"auto": "uva"}.get(placement, placement)
    table.truncate(50)
    ids.fill_(60)
    graph.replay()
    assert not out.any()
    with pytest.raises(IndexError, match="asked for id 60, which was not in the table"):
        table.gather(ids, out)


def test_a_captured_gather_finds_nothing_where_no_kernel_reads():
    gpu = EmulatedDevice(host_bytes=1 << 20)
    table = FeatureTable(8, device=gpu, budget=9_000)
    table.append(some_rows(100, 8))
    ids, out = torch.tensor([3]), torch.ones(1, 8)
    graph = Captured.of(gpu, lambda: table.gather(ids, out))
    with pytest.warns(RuntimeWarning, match="through a buffer"):
        table.append(some_rows(5_000, 8))
    assert torch.equal(table[ids], table.read(3, 4))
    graph.replay()
    assert not out.any()


def test_a_captured_gather_through_a_cache_sees_the_table_grow():
    gpu = EmulatedDevice()
    table = FeatureTable(4, placement="device", device=gpu)
    table.append(some_rows(10, 4))
    cache = cached(table, rows=8, device=gpu)
    found = Lookup(torch.tensor([2_000, 3_010]))
    engine = cache._engine
    captured = engine._batch(found, CachePurpose.GATHER)
    cache.append(some_rows(3_000, 4))
    gpu.kernels.launch("cache_look_up", 1, 256, engine._args(), captured)
    assert cache.counters.misses == 1


@for_each_gpu
@pytest.mark.parametrize("placement", ["device", "uva"])
@pytest.mark.parametrize("with_cache", [False, True])
def test_a_scatter_is_in_the_order_of_the_stream(gpu, placement, with_cache):
    rows, there = some_rows(200, 6), place_of(gpu)
    device = opened(gpu)
    table = FeatureTable(6, placement=placement, device=device)
    table.append(rows)
    if with_cache:
        table = cached(table, rows=50, device=device)
    generator = torch.Generator().manual_seed(0)
    for step in range(6):
        ids = torch.randperm(200, generator=generator)[:60]
        rows[ids] = some_rows(60, 6) + step
        table.scatter_(ids.to(there), rows[ids].to(there))
        found = table.gather(ids.to(there))
        assert torch.equal(found.cpu(), rows[ids])
    assert torch.equal(table.read(0, 200), rows)


@apart_only
@pytest.mark.parametrize("placement", ["device", "uva"])
def test_neither_gather_nor_scatter_makes_the_host_wait(placement):
    gpu = EmulatedDevice.apart()
    table = FeatureTable(6, placement=placement, device=gpu)
    table.append(some_rows(200, 6))
    cache = cached(table, rows=50, device=gpu)
    ids, rows = torch.arange(40).to(gpu.device), some_rows(40, 6).to(gpu.device)
    with watching() as watch:
        table.scatter_(ids, rows)
        table.gather(ids)
        cache.gather(ids)
        cache.scatter_(ids, rows)
    assert watch.waits == []
    assert gpu.synchronized == 0


def test_the_host_reads_rows_in_place_behind_the_kernels_that_write_them():
    gpu = EmulatedDevice()
    table = FeatureTable(2, placement="uva", device=gpu)
    table.append(some_rows(5, 2))
    table.scatter_(torch.tensor([1]), torch.ones(1, 2))
    for is_busy in (True, False):
        gpu.busy = {0} if is_busy else set()
        table.scatter_(torch.tensor([1]), torch.ones(1, 2))
        waited = gpu.synchronized
        table.read(0, 5)
        assert gpu.synchronized == waited + is_busy


def test_a_scatter_waits_on_the_device_for_readers_elsewhere():
    gpu = EmulatedDevice()
    table = FeatureTable(2, placement="uva", device=gpu)
    table.append(some_rows(5, 2))
    gpu.current = 7
    table[torch.tensor([1])]
    gpu.current = 0
    gpu.waits.clear()
    table.scatter_(torch.tensor([1]), torch.ones(1, 2))
    assert gpu.waits == [(0, 7)]


@pytest.mark.parametrize("gpu", ["apart", pytest.param("cuda", marks=needs_cuda)])
@apart_only
def test_ids_of_a_scatter_on_a_gpu_are_found_wrong_later(gpu):
    table = FeatureTable(2, placement="device", device=opened(gpu))
    table.append(some_rows(5, 2))
    ids = torch.tensor([9, 1], device=place_of(gpu))
    table.scatter_(ids, torch.ones(2, 2, device=place_of(gpu)))
    assert table.read(0, 5)[1].tolist() == [1, 1]  # waits
    with pytest.raises(IndexError, match=r"asked for id 9, .* or wrote nothing"):
        table.scatter_(ids, torch.ones(2, 2, device=place_of(gpu)))


def test_the_memory_of_a_machine_may_grow_with_its_use(monkeypatch):
    limits = iter([1 << 16, 1 << 16, 1 << 22, 1 << 22])
    monkeypatch.setattr(host, "memory_limit", lambda: next(limits))
    rows = HostRows(1 << 10)
    rows.append(torch.zeros(64, 1 << 10, dtype=torch.uint8), 0)
    with pytest.raises(MemoryError, match='there is memory for 65536; use placement="disk"'):
        rows.append(torch.zeros(1, 1 << 10, dtype=torch.uint8), 64)
    rows.append(torch.zeros(1, 1 << 10, dtype=torch.uint8), 64)
    assert len(rows._memory) >= 1 << 32  # addresses cost nothing, whatever there is at first


def test_a_container_says_how_much_memory_there_is(monkeypatch, tmp_path):
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "limit").write_text("12345\n")
    for names, expected in ((("max", "none", "limit"), 12_345), (("max", "none"), None)):
        monkeypatch.setattr(host, "_CGROUP_LIMITS", tuple(tmp_path / name for name in names))
        limit = host.memory_limit()
        assert limit == expected or (expected is None and limit > 1 << 28)
