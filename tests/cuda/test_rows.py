"""Row kernels, lane by lane: memory lines a gather reads, and rows a scatter writes."""

import pytest
import torch

from helpers.effort import cases
from helpers.emulator import Emulator
from helpers.emulator.device import EmulatedDevice
from tgflow.cuda.rows import LINE, TableView

NUM_ROWS = 640


def line_aligned(num_bytes):
    """Return bytes aligned to a cache line, like pages and device memory."""
    bytes_ = torch.randint(0, 256, (num_bytes + 2 * LINE,), dtype=torch.uint8)
    return bytes_[-bytes_.data_ptr() % LINE :][:num_bytes]


def viewed(gpu, rows):
    view = TableView(gpu, rows.shape[1])
    view.publish(rows.data_ptr(), len(rows))
    return view


def gathered(row_bytes, ids, order=0):
    """Return rows, the gathered rows, the wrong id, and the GPU."""
    gpu = EmulatedDevice(kernels=Emulator(order=order))
    rows = line_aligned(NUM_ROWS * row_bytes).view(NUM_ROWS, row_bytes)
    out = torch.full((len(ids), row_bytes), 7, dtype=torch.uint8)
    view = viewed(gpu, rows)
    view.gather(ids, out, in_place=True)
    return rows, out, view._wrong, gpu


@pytest.mark.parametrize("order", cases([0, 1, 5], [0, 5]))
@pytest.mark.parametrize(
    "row_bytes",
    cases([1, 2, 6, 12, 16, 24, 120, 128, 130, 400, 511, 688, 2_000], [1, 6, 16, 130, 400, 511]),
)
def test_rows_of_every_width_are_gathered_in_every_lane_order(row_bytes, order):
    ids = torch.randint(-1, NUM_ROWS, (157,), generator=torch.Generator().manual_seed(order))
    rows, out, wrong, _ = gathered(row_bytes, ids, order)
    assert torch.equal(out, torch.cat([rows, torch.zeros_like(rows[:1])])[ids])
    assert wrong.item() == -(2**63)


def test_wrong_ids_are_reported_and_not_read():
    rows, out, wrong, gpu = gathered(48, torch.tensor([3, 2**40, -(2**40)]))
    assert wrong.item() == 2**40
    assert torch.equal(out[0], rows[3])
    assert not out[1:].any()
    first = rows.data_ptr() // LINE * LINE
    for _, _, address, size in gpu.kernels.reads():
        assert first <= address <= first + rows.numel() - size


@pytest.mark.parametrize("order", cases([0, 1, 5], [0, 5]))
@pytest.mark.parametrize(
    "row_bytes", cases([1, 2, 6, 12, 16, 24, 130, 400, 511, 688], [6, 16, 511])
)
def test_scatter_writes_only_its_rows(row_bytes, order):
    gpu = EmulatedDevice(kernels=Emulator(order=order))
    rows = line_aligned(NUM_ROWS * row_bytes).view(NUM_ROWS, row_bytes)
    generator = torch.Generator().manual_seed(order)
    ids = torch.randperm(NUM_ROWS, generator=generator)[:157]
    new = torch.randint(0, 256, (157, row_bytes), dtype=torch.uint8)
    expected, view = rows.clone().index_copy_(0, ids, new), viewed(gpu, rows)
    view.scatter(ids, new, in_place=True)
    assert torch.equal(rows, expected)
    view.check()


@pytest.mark.parametrize("bad", [NUM_ROWS, -1, 2**40])
def test_scatter_skips_missing_rows(bad):
    gpu = EmulatedDevice()
    rows = line_aligned(NUM_ROWS * 8).view(NUM_ROWS, 8)
    expected, view = rows.clone(), viewed(gpu, rows)
    expected[3] = 9
    new = torch.full((2, 8), 9, dtype=torch.uint8)
    view.scatter(torch.tensor([bad, 3]), new, in_place=False)
    assert torch.equal(rows, expected)
    with pytest.raises(IndexError, match=f"asked for id {bad},"):
        view.check()
