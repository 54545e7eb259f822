"""The kernels of rows, lane by lane: which lines a gather asks for, and what a scatter writes."""

from __future__ import annotations

import ctypes

import pytest
import torch

from helpers.effort import cases
from helpers.emulator import Emulator
from helpers.emulator.device import EmulatedDevice
from tgflow.cuda.rows import LINE, TableView, gather, lanes_of, scatter

NUM_ROWS = 640


def line_aligned(num_bytes: int) -> torch.Tensor:
    """Return bytes that begin at a line, as pages and device memory do."""
    bytes_ = torch.randint(0, 256, (num_bytes + 2 * LINE,), dtype=torch.uint8)
    return bytes_[-bytes_.data_ptr() % LINE :][:num_bytes]


def viewed(gpu: EmulatedDevice, rows: torch.Tensor) -> TableView:
    view = TableView(gpu)
    view.publish(rows.data_ptr(), len(rows))
    return view


def gathered(row_bytes: int, ids: torch.Tensor, order: int = 0) -> tuple[torch.Tensor, ...]:
    """Return rows, what the kernel makes of `ids`, and the GPU."""
    gpu = EmulatedDevice(kernels=Emulator(order=order))
    rows = line_aligned(NUM_ROWS * row_bytes).view(NUM_ROWS, row_bytes)
    out = torch.full((len(ids), row_bytes), 7, dtype=torch.uint8)
    wrong = torch.tensor([-1])
    gather(gpu, viewed(gpu, rows), row_bytes, ids, out, wrong, in_place=True)
    return rows, out, wrong, gpu


@pytest.mark.parametrize("order", cases([0, 1, 5], [0, 5]))
@pytest.mark.parametrize(
    "row_bytes",
    cases([1, 2, 6, 12, 16, 24, 120, 128, 130, 400, 511, 688, 2_000], [1, 6, 16, 130, 400, 511]),
)
def test_every_width_in_every_order_of_lanes(row_bytes, order):
    ids = torch.randint(-1, NUM_ROWS, (157,), generator=torch.Generator().manual_seed(order))
    rows, out, wrong, _ = gathered(row_bytes, ids, order)
    assert torch.equal(out, torch.cat([rows, torch.zeros_like(rows[:1])])[ids])
    assert wrong.item() == -1


def test_wrong_ids_are_reported_and_read_nothing():
    rows, out, wrong, gpu = gathered(48, torch.tensor([3, 2**40, -(2**40)]))
    assert wrong.item() == 2**40
    assert torch.equal(out[0], rows[3])
    assert not out[1:].any()
    first = rows.data_ptr() // LINE * LINE
    for _, _, address, size in gpu.kernels.reads():
        assert first <= address <= first + rows.numel() - size


def requests(reads, base: int, row_bytes: int, first: int, width: int) -> float:
    """Return lines asked for a row, where a warp's instruction reads `width` bytes from `first`.

    A line that two instructions touch is asked for twice.
    """
    asked = set()
    for block, thread, address, _ in reads:
        row = (address - base) // row_bytes
        begin = base + row * row_bytes
        instruction = (address - (begin // first * first)) // width
        asked.add((block, thread // 32, row, instruction, address // LINE))
    return len(asked) / NUM_ROWS


@pytest.mark.parametrize(("dim", "saved"), [(100, 1.656), (172, 1.70), (128, 1.0)])
def test_aligned_reads_ask_for_fewer_lines_than_naive_ones(dim, saved, tmp_path):
    row_bytes = 4 * dim
    rows, _, _, gpu = gathered(row_bytes, torch.randperm(NUM_ROWS))
    step = lanes_of(row_bytes, 16) * 16
    aligned = requests(gpu.kernels.reads(), rows.data_ptr(), row_bytes, LINE, step)
    naive = naive_kernel(tmp_path)
    out, ids = torch.empty_like(rows), torch.randperm(NUM_ROWS)
    pointers = [ctypes.c_void_p(x.data_ptr()) for x in (rows, ids, out)]
    size = ctypes.c_int64(NUM_ROWS)
    naive.launch(
        "naive_gather", 4, 64, pointers[0], ctypes.c_int64(dim), pointers[1], size, pointers[2]
    )
    assert torch.equal(out, rows[ids])
    plain = requests(naive.reads(), rows.data_ptr(), row_bytes, 1, LINE)
    assert plain / aligned == pytest.approx(saved, abs=0.005)
    lines = torch.arange(NUM_ROWS) * row_bytes
    least = ((lines + row_bytes - 1) // LINE - lines // LINE + 1).double().mean()
    assert aligned == pytest.approx(float(least))


NAIVE_GATHER = """
extern "C" __global__ void naive_gather(
    const float* rows, long long dim, const long long* id, long long num_ids, float* out) {
  const long long warps = gridDim.x * (long long)blockDim.x / 32;
  const long long first = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / 32;
  for (long long i = first; i < num_ids; i += warps) {
    for (long long j = threadIdx.x % 32; j < dim; j += 32) {
      out[i * dim + j] = __ldcs(rows + id[i] * dim + j);
    }
  }
}
"""
"""A gather of one warp a row, which reads from where the row begins."""


def naive_kernel(folder) -> Emulator:
    source = folder / "naive.cu"
    source.write_text(NAIVE_GATHER)
    return Emulator((source,))


@pytest.mark.parametrize("processors", [1, 8, 132])
def test_the_grid_leaves_most_multiprocessors_alone(processors):
    asked = []

    class Kernels:
        def launch(self, name, blocks, threads, *arguments):
            asked.append(blocks)

    gpu = EmulatedDevice(kernels=Kernels(), multiprocessors=processors)
    many = torch.zeros(1_000_000, dtype=torch.int64)
    out = torch.empty(1, dtype=torch.uint8)
    view = TableView(gpu)
    for ids in (many, many[:10]):
        gather(gpu, view, 400, ids, out, many[:1], in_place=True)
    assert asked[1:] == [max(processors // 4, 1), 1]


@pytest.mark.parametrize("order", cases([0, 1, 5], [0, 5]))
@pytest.mark.parametrize(
    "row_bytes", cases([1, 2, 6, 12, 16, 24, 130, 400, 511, 688], [6, 16, 511])
)
def test_scattered_rows_are_there_and_no_others(row_bytes, order):
    gpu = EmulatedDevice(kernels=Emulator(order=order))
    rows = line_aligned(NUM_ROWS * row_bytes).view(NUM_ROWS, row_bytes)
    generator = torch.Generator().manual_seed(order)
    ids = torch.randperm(NUM_ROWS, generator=generator)[:157]
    new = torch.randint(0, 256, (157, row_bytes), dtype=torch.uint8)
    expected, wrong = rows.clone().index_copy_(0, ids, new), torch.tensor([-5])
    scatter(gpu, viewed(gpu, rows), row_bytes, ids, new, wrong, in_place=True)
    assert torch.equal(rows, expected)
    assert wrong.item() == -5


@pytest.mark.parametrize("bad", [NUM_ROWS, -1, 2**40])
def test_a_row_that_is_not_there_is_left_out_of_a_scatter(bad):
    gpu = EmulatedDevice()
    rows = line_aligned(NUM_ROWS * 8).view(NUM_ROWS, 8)
    expected, wrong = rows.clone(), torch.tensor([-5])
    expected[3] = 9
    new = torch.full((2, 8), 9, dtype=torch.uint8)
    scatter(gpu, viewed(gpu, rows), 8, torch.tensor([bad, 3]), new, wrong, in_place=False)
    assert torch.equal(rows, expected)
    assert wrong.item() == bad
