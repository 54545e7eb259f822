"""Feature tables: rows by id, zeros for missing ids, in any placement."""

import pickle

import numpy as np
import pytest
import torch

import tgflow as tg
from helpers.devices import for_each_gpu
from helpers.effort import cases
from helpers.emulator.device import EmulatedDevice
from helpers.made_tables import (
    expected_rows,
    for_each_place_that_changes,
    for_each_placement,
    home,
    made,
    some_rows,
)
from tgflow.graph.tables import FeatureTable, host

DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.float8_e5m2,
    torch.uint16,
)
ORDERS = {
    "rising": torch.arange,
    "falling": lambda size: torch.arange(size).flip(0),
    "shuffled": lambda size: torch.randperm(size, generator=torch.Generator().manual_seed(0)),
    "repeated": lambda size: torch.arange(size) // 7 * 3 % size,
    "with gaps": lambda size: torch.where(torch.arange(size) % 3 == 0, -1, torch.arange(size)),
}


@for_each_placement
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", cases([1, 3, 8, 100, 172, 300], [3, 100]))
def test_rows_of_any_width_and_dtype_are_gathered_in_any_order(placement, device, dtype, dim):
    rows = some_rows(150, dim, dtype)
    table = made(placement, device, dim, dtype)
    for part in rows.split(60):
        table.append(part)
    at = home(table, device)
    for name, order in ORDERS.items():
        ids = order(len(rows))
        found = table.gather(ids.to(at))
        assert found.device.type == at.type
        assert torch.equal(found.cpu(), expected_rows(rows, ids)), name
        assert torch.equal(table[ids.to(at).view(1, -1, 1)].view(found.shape), found), name
    assert torch.equal(table.read(20, 130), rows[20:130])
    table.close()


@for_each_placement
def test_out_may_have_any_storage_offset(placement, device):
    table = made(placement, device, 5, torch.uint8)
    rows = some_rows(40, 5, torch.uint8)
    table.append(rows)
    at = home(table, device)
    for begin in range(9):
        out = torch.full((40 * 5 + 9,), 7, dtype=torch.uint8, device=at)
        table.gather(torch.arange(40, device=at), out[begin : begin + 200].view(40, 5))
        assert torch.equal(out[begin : begin + 200].cpu(), rows.view(-1))
        assert out.sum() == int(rows.sum()) + 9 * 7


@for_each_placement
def test_gather_refuses_invalid_ids_and_out(placement, device):
    table = made(placement, device, 2)
    table.append(some_rows(5, 2))
    at = home(table, device)
    with pytest.raises(ValueError, match="ids must be int64, got int32"):
        table.gather(torch.tensor([0], dtype=torch.int32))
    message = r"out must be contiguous float32 \[1, 2\], got float32 \[2, 2\]"
    with pytest.raises(ValueError, match=message):
        table.gather(torch.tensor([0], device=at), torch.empty(2, 2, device=at))
    with pytest.raises(ValueError, match=r"rows must be float32 \[N, 2\], got float64 \[1, 2\]"):
        table.append(torch.zeros(1, 2, dtype=torch.float64))
    table.close()


@for_each_placement
def test_invalid_table_arguments_are_refused_and_change_nothing(placement, device):
    table = made(placement, device, 1, torch.int64)
    at = home(table, device)
    table.append(torch.arange(9).view(9, 1))
    both = torch.arange(6, device=at)
    calls = {
        "out must not share memory with ids": lambda: table.gather(both[:3], both[2:5].view(3, 1)),
        "ids must be a tensor, got list": lambda: table[[1, 2]],
        "ids must be a tensor, got ndarray": lambda: table.gather(np.arange(3)),
        "rows must be a tensor, got ndarray": lambda: table.append(np.zeros((3, 1), np.int64)),
        "size must be at least 0, got -1": lambda: table.truncate(-1),
    }
    for message, call in calls.items():
        with pytest.raises((TypeError, ValueError), match=message):
            call()
    table.gather(both[:3], both[3:].view(3, 1))
    assert both.tolist() == [0, 1, 2, 0, 1, 2]
    assert len(table) == 9
    table.close()


def test_table_cannot_be_pickled():
    with pytest.raises(TypeError, match="a table cannot be pickled or copied"):
        pickle.dumps(tg.tables.FeatureTable.from_tensor(some_rows(2, 2)))


@for_each_gpu
@pytest.mark.parametrize("placement", ["device", "uva"])
def test_missing_id_gives_zeros_on_a_gpu_and_then_an_error(gpu, placement):
    table = made(placement, gpu, 2)
    table.append(some_rows(5, 2) + 10)
    found = table[torch.tensor([0, 5], device=home(table, gpu))].cpu()  # waits for the kernel
    assert found[1].tolist() == [0, 0]
    with pytest.raises(IndexError, match="asked for id 5, which was not in the table; it gave"):
        table[torch.tensor([0], device=home(table, gpu))]
    table[torch.tensor([4], device=home(table, gpu))]  # it was told
    table.close()


@for_each_place_that_changes
def test_scatter_overwrites_the_rows_of_its_ids(placement, device):
    rows = some_rows(30, 4)
    table = made(placement, device, 4)
    table.append(rows)
    at = home(table, device)
    for seed in range(1, 4):
        ids = torch.randperm(30, generator=torch.Generator().manual_seed(seed))[:10]
        rows[ids] = some_rows(10, 4) * seed
        table.scatter_(ids.to(at), rows[ids].to(at))
        assert torch.equal(table[torch.arange(30, device=at)].cpu(), rows)
    table.scatter_(torch.empty(0, dtype=torch.int64), rows[:0])
    for ids, error, message in (
        ([3, 1, 3], ValueError, "ids must be unique, got 3 twice"),
        ([3, 1, 30], IndexError, "id 30 is not in a table of 30 rows"),
        ([3, 1, -1], IndexError, "id -1 is not in a table of 30 rows"),
        ([3, 1], ValueError, r"ids must be int64 \[3\], got int64 \[2\]"),
    ):
        with pytest.raises(error, match=message):
            table.scatter_(torch.tensor(ids), torch.zeros(3, 4, device=at))
    assert torch.equal(table[torch.arange(30, device=at)].cpu(), rows)


@for_each_placement
def test_truncated_rows_are_written_again(placement, device):
    rows = some_rows(20, 3)
    table = made(placement, device, 3)
    assert table.append(rows[:8]) == 0
    assert table.append(some_rows(5, 3) * 7) == 8
    table.truncate(8)
    assert len(table) == 8
    assert table.append(rows[8:]) == 8
    assert torch.equal(table.read(0, 20), rows)


@for_each_placement
@pytest.mark.parametrize("first", [0, 3_000])
def test_rows_after_freed_ones_stay_and_memory_is_bounded(placement, device, first, monkeypatch):
    monkeypatch.setattr(host, "_LEAST_ADDRESSES", 1 << 22)  # so that addresses run out
    monkeypatch.setattr(host, "_GROWTH", 0)
    rows, sizes = some_rows(60_000 + first, 64), []
    table = made(placement, device, 64)
    table.forget(first)
    for start in range(first, len(rows) if placement != "uva" else 14_000, 500):
        assert table.append(rows[start : start + 500]) == start
        table.forget(max(first, start - 4_000))
        ids = torch.arange(max(first, start - 4_000), start + 500, device=home(table, device))
        assert torch.equal(table[ids.flip(0)].cpu(), rows[ids.flip(0).cpu()])
        assert torch.equal(table.read(int(ids[0]), start + 500), rows[ids.cpu()])
        if placement == "host" and table.in_memory is not None:
            assert torch.equal(table.in_memory[ids], rows[ids])
        sizes.append(table.nbytes)
    assert not table.read(0, 5).any()
    most = 4_500 * 64 * 4 + {"host": 0, "disk": 16 << 20}.get(placement, 4 << 20)
    assert max(sizes) <= {"device": 2 * most}.get(placement, most)
    with pytest.raises(ValueError, match="were freed"):
        table.truncate(5)


@for_each_placement
def test_empty_table_gives_zeros_for_missing_ids(placement, device):
    table = made(placement, device, 3)
    at = home(table, device)
    assert table[torch.empty(0, dtype=torch.int64, device=at)].shape == (0, 3)
    assert table[torch.tensor([-1, -1], device=at)].tolist() == [[0, 0, 0]] * 2
    assert table.append(torch.empty(0, 3)) == 0
    assert table.read(0, 0).shape == (0, 3)
    with pytest.raises(IndexError, match=r"holds rows \[0, 0\), got \[0, 1\)"):
        table.read(0, 1)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="dim must be at least 1, got 0"):
        FeatureTable(0)
    with pytest.raises(TypeError, match=r"dtype must be a torch\.dtype, got 'float32'"):
        FeatureTable(3, "float32")
    with pytest.raises(
        ValueError, match="placement must be one of auto, device, uva, host, disk, got"
    ):
        FeatureTable(3, placement="tape")
    with pytest.raises(ValueError, match="placement 'uva' needs a GPU as its device, got 'cpu'"):
        FeatureTable(3, placement="uva", device="cpu")
    for placement in ("host", "device", "uva"):
        with pytest.raises(ValueError, match='budget and path are for placement "auto" or "disk"'):
            FeatureTable(3, placement=placement, budget=5, device=EmulatedDevice())
