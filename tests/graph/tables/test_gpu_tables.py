"""Tables read by kernels: in CUDA stream order, and in captured graphs."""

from dataclasses import dataclass, field

import pytest
import torch

from helpers.devices import for_each_gpu, opened, place_of
from helpers.emulator.device import EmulatedDevice
from helpers.made_tables import expected_rows, some_rows
from tgflow.graph.tables import FeatureTable


@dataclass
class Captured:
    """Records the launches of a call and replays them, like a CUDA graph."""

    gpu: EmulatedDevice
    calls: list[tuple] = field(default_factory=list)

    @classmethod
    def of(cls, gpu, call):
        graph, kernels = cls(gpu), gpu.kernels
        gpu.kernels, gpu.of_thread.captures = graph, True
        try:
            call()
        finally:
            gpu.kernels, gpu.of_thread.captures = kernels, False
        return graph

    def launch(self, name, blocks, threads, *arguments):
        copies = [type(each).from_buffer_copy(each) for each in arguments]
        self.calls.append((name, blocks, threads, *copies))

    def replay(self):
        for call in self.calls:
            self.gpu.kernels.launch(*call)


@pytest.mark.parametrize(
    ("placement", "budget"), [("device", None), ("uva", None), ("auto", 9_000)]
)
def test_captured_gather_reads_the_grown_and_moved_table(placement, budget):
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


@for_each_gpu
@pytest.mark.parametrize("placement", ["device", "uva"])
def test_scatter_follows_cuda_stream_order(gpu, placement):
    rows, there = some_rows(200, 6), place_of(gpu)
    device = opened(gpu)
    table = FeatureTable(6, placement=placement, device=device)
    table.append(rows)
    generator = torch.Generator().manual_seed(0)
    for step in range(6):
        ids = torch.randperm(200, generator=generator)[:60]
        rows[ids] = some_rows(60, 6) + step
        table.scatter_(ids.to(there), rows[ids].to(there))
        found = table.gather(ids.to(there))
        assert torch.equal(found.cpu(), rows[ids])
    assert torch.equal(table.read(0, 200), rows)


@for_each_gpu
def test_wrong_scatter_ids_on_a_gpu_are_reported_later(gpu):
    table = FeatureTable(2, placement="device", device=opened(gpu))
    table.append(some_rows(5, 2))
    ids = torch.tensor([9, 1], device=place_of(gpu))
    table.scatter_(ids, torch.ones(2, 2, device=place_of(gpu)))
    assert table.read(0, 5)[1].tolist() == [1, 1]  # waits
    with pytest.raises(IndexError, match=r"asked for id 9, .* or wrote nothing"):
        table.scatter_(ids, torch.ones(2, 2, device=place_of(gpu)))
