"""Feature tables: rows by id, zeros where there is none, alike wherever the rows are."""

from __future__ import annotations

import gc
import itertools
import pickle
import threading
import warnings
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tgflow as tg
from helpers.devices import for_each_gpu, needs_cuda, opened
from helpers.emulator.device import EmulatedDevice
from tgflow.tables import FeatureTable
from tgflow.tables.backends import Placement

EVERYWHERE = [
    ("host", None),
    ("disk", None),
    ("device", "emulated"),
    ("uva", "emulated"),
    pytest.param("device", "cuda", marks=needs_cuda),
    pytest.param("uva", "cuda", marks=needs_cuda),
]
for_each_placement = pytest.mark.parametrize(("placement", "device"), EVERYWHERE)
for_each_place_that_changes = pytest.mark.parametrize(
    ("placement", "device"), [placement for placement in EVERYWHERE if placement != ("disk", None)]
)
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


def made(
    placement: str, device: str | None, dim: int, dtype=torch.float32, **options
) -> FeatureTable:
    gpu = None if device is None else opened(device)
    return FeatureTable(dim, dtype, placement, device=gpu, **options)


def home(table: FeatureTable, device: str | None) -> str:
    """Where ids of this table's readers are."""
    return "cuda" if device == "cuda" else "cpu"


def some_rows(size: int, dim: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size * 1000 + dim)
    if dtype == torch.bool:
        return torch.rand(size, dim, generator=generator) < 0.5
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(0, 100, (size, dim), generator=generator).to(dtype)
    return torch.randn(size, dim, generator=generator).to(dtype)


def expected_rows(rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.cat([rows, torch.zeros_like(rows[:1])])[ids] if len(rows) else rows[:0][ids]


@for_each_placement
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [1, 3, 8, 100, 172, 300])
def test_rows_of_any_width_and_dtype_come_in_any_order(placement, device, dtype, dim):
    rows = some_rows(150, dim, dtype)
    table = made(placement, device, dim, dtype)
    for part in rows.split(60):
        table.append(part)
    at = home(table, device)
    for name, order in ORDERS.items():
        ids = order(len(rows))
        found = table.gather(ids.to(at))
        assert found.device.type == at
        assert torch.equal(found.cpu(), expected_rows(rows, ids)), name
    assert torch.equal(table.read(20, 130), rows[20:130])
    table.close()


@given(size=st.integers(1, 50), dim=st.integers(1, 40), data=st.data())
@pytest.mark.parametrize("placement", ["host", "disk", "device", "uva"])
def test_gather_matches_indexing(placement, size, dim, data):
    rows = torch.arange(1.0, size * dim + 1).reshape(size, dim)
    table = made(placement, None if placement in ("host", "disk") else "emulated", dim)
    for begin in range(0, size, 7):
        table.append(rows[begin : begin + 7])
    listed = data.draw(st.lists(st.integers(-1, size - 1), max_size=30))
    ids = torch.tensor(listed, dtype=torch.int64)
    assert torch.equal(table.gather(ids), expected_rows(rows, ids))
    shaped = table[ids.reshape(1, -1, 1)]
    assert torch.equal(shaped, expected_rows(rows, ids).reshape(1, -1, 1, dim))


@for_each_placement
def test_gather_of_many_rows_into_a_given_tensor(placement, device):
    rows = some_rows(1_000, 3)
    table = made(placement, device, 3)
    table.append(rows)
    at = home(table, device)
    ids = torch.randint(1_000, (200, 60), generator=torch.Generator().manual_seed(0))
    out = torch.full((60, 200, 3), torch.nan, device=at)
    assert table.gather(ids.t().to(at), out) is out
    assert torch.equal(out.cpu(), rows[ids.t()])


@for_each_placement
def test_out_may_begin_anywhere(placement, device):
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
def test_gather_refuses_what_it_cannot_read_or_write(placement, device):
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
def test_what_no_table_can_take_is_told_and_changes_nothing(placement, device):
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


@for_each_placement
def test_rows_that_torch_has_not_resolved_yet(placement, device):
    table = made(placement, device, 2, torch.complex64)
    rows = torch.complex(some_rows(4, 2), some_rows(4, 2))
    table.append(rows.conj())
    assert torch.equal(table.read(0, 4), rows.conj().resolve_conj())
    table.close()


def test_a_table_is_not_pickled():
    with pytest.raises(TypeError, match="a table is not pickled or copied"):
        pickle.dumps(tg.FeatureTable.from_tensor(some_rows(2, 2)))


def test_an_id_that_is_not_there_is_an_error_at_once_on_the_cpu():
    table = tg.FeatureTable.from_tensor(some_rows(5, 2))
    with pytest.raises(IndexError, match="id 5 is not in a table of 5 rows"):
        table.gather(torch.tensor([0, 5]))


@for_each_gpu
@pytest.mark.parametrize("placement", ["device", "uva"])
def test_an_id_that_is_not_there_gives_zeros_on_a_gpu_and_then_an_error(gpu, placement):
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
        ([3, 1, 3], ValueError, "ids must be unique, and 3 comes twice"),
        ([3, 1, 30], IndexError, "id 30 is not in a table of 30 rows"),
        ([3, 1, -1], IndexError, "id -1 is not in a table of 30 rows"),
        ([3, 1], ValueError, r"ids must be int64 \[3\], got int64 \[2\]"),
    ):
        with pytest.raises(error, match=message):
            table.scatter_(torch.tensor(ids, device=at), torch.zeros(3, 4, device=at))
    assert torch.equal(table[torch.arange(30, device=at)].cpu(), rows)


@for_each_placement
def test_rows_that_were_taken_back_are_written_again(placement, device):
    rows = some_rows(20, 3)
    table = made(placement, device, 3)
    assert table.append(rows[:8]) == 0
    assert table.append(some_rows(5, 3) * 7) == 8
    table.truncate(8)
    assert len(table) == 8
    assert table.append(rows[8:]) == 8
    assert torch.equal(table.read(0, 20), rows)


@for_each_placement
def test_an_empty_table_gives_zeros_for_nobody(placement, device):
    table = made(placement, device, 3)
    at = home(table, device)
    assert table[torch.empty(0, dtype=torch.int64, device=at)].shape == (0, 3)
    assert table[torch.tensor([-1, -1], device=at)].tolist() == [[0, 0, 0]] * 2
    assert table.append(torch.empty(0, 3)) == 0
    assert table.read(0, 0).shape == (0, 3)
    with pytest.raises(IndexError, match=r"holds rows \[0, 0\), asked for \[0, 1\)"):
        table.read(0, 1)


def test_a_table_of_an_array():
    x = np.arange(12, dtype=np.int16).reshape(4, 3)
    table = tg.FeatureTable.from_tensor(x)
    assert (len(table), table.dim, table.dtype, table.placement) == (4, 3, torch.int16, "host")
    assert table[torch.tensor([2])].tolist() == [[6, 7, 8]]
    read_only = np.frombuffer(x.tobytes(), np.int16).reshape(4, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tg.FeatureTable.from_tensor(read_only).read(0, 4).tolist() == x.tolist()
    with pytest.raises(ValueError, match=r"x must be \[N, dim\], got \[3\]"):
        tg.FeatureTable.from_tensor(np.zeros(3))


def test_a_closed_table_is_of_no_use():
    table = tg.FeatureTable.from_tensor(some_rows(3, 2))
    for _ in range(2):
        table.close()
    assert (len(table), table.nbytes) == (0, 0)
    for use in (
        lambda: table[torch.tensor([0])],
        lambda: table.append(some_rows(1, 2)),
        lambda: table.read(0, 0),
        lambda: table.truncate(0),
    ):
        with pytest.raises(ValueError, match="this table is closed"):
            use()


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


def test_auto_moves_on_when_the_budget_is_spent():
    gpu = EmulatedDevice()
    rows = some_rows(6_000, 8)
    table = FeatureTable(8, device=gpu, budget=3_000 * 32)
    placements = []
    for part in rows.split(1_000):
        table.append(part)
        placements.append(table.placement)
        assert torch.equal(table.read(0, len(table)), rows[: len(table)])
    assert placements == ["device"] * 3 + ["uva"] * 3
    ids = torch.randint(-1, 6_000, (500,))
    assert torch.equal(table[ids], expected_rows(rows, ids))


@pytest.mark.parametrize("part", [100, 997, 40_000])
def test_a_budget_bounds_the_device_memory_also_while_it_moves(part):
    pieces = []

    class Recorded(EmulatedDevice):
        def allocate(self, num_bytes):
            pieces.append(num_bytes)
            return super().allocate(num_bytes)

    budget = 30_000 * 32
    table = FeatureTable(8, device=Recorded(), budget=budget)
    for size in range(0, 40_000, part):
        table.append(some_rows(part, 8))
        assert table.nbytes <= budget or table.placement == "uva"
        assert len(table) == size + part
    assert table.placement == "uva"
    both = [a + b for a, b in itertools.pairwise(pieces)]
    assert max([0, *both]) <= 1.1 * budget + 128


def test_memory_is_not_given_back_under_a_reader_on_another_stream():
    gpu = EmulatedDevice()
    for busy in (set(), {7}):
        table = FeatureTable(4, placement="device", device=gpu)
        table.append(some_rows(10, 4))
        gpu.current = 7
        table[torch.arange(10)]
        gpu.current, gpu.busy, waited = 0, busy, gpu.synchronized
        del table
        assert gpu.synchronized == waited + len(busy)


def test_auto_moves_on_where_the_device_is_full():
    gpu = EmulatedDevice(device_bytes=100_000)
    table = FeatureTable(8, device=gpu)
    rows = some_rows(10_000, 8)
    for part in rows.split(500):
        table.append(part)
    assert table.placement == "uva"
    assert torch.equal(table[torch.arange(10_000)], rows)


def test_a_failed_registration_is_said_once_and_rows_are_staged():
    gpu = EmulatedDevice(host_bytes=5 << 20)
    table = FeatureTable(64, placement="uva", device=gpu)
    rows = some_rows(40_000, 64)
    table.append(rows[:10_000])
    table.append(rows[10_000:11_000])
    with pytest.warns(RuntimeWarning, match=r"to cpu through a buffer.*asked the host to pin"):
        table.append(rows[11_000:])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table.append(rows)
    ids = torch.randint(-1, 40_000, (300,))
    launched = len(gpu.kernels.launches)
    assert torch.equal(table[ids], expected_rows(rows, ids))
    assert len(gpu.kernels.launches) == launched
    table.close()
    assert not gpu.registered


def test_registrations_are_given_back():
    gpu = EmulatedDevice()
    room = gpu.host_bytes
    for i in range(1_000):
        table = FeatureTable(4, placement="uva", device=gpu)
        table.append(some_rows(10, 4))
        assert gpu.registered
        if i % 2:
            table.close()
        del table
    gc.collect()
    assert not gpu.registered
    assert room - gpu.host_bytes == 1_000 * 8  # words for wrong ids, which are not pinned apart
    assert gpu.synchronized == 1_000  # never unpinned under a kernel


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
def test_a_thousand_registrations_leak_nothing_on_a_gpu():
    def cycle() -> None:
        table = FeatureTable(4, placement="uva")
        table.append(some_rows(10, 4))
        table[torch.arange(10, device="cuda")]
        table.close()

    cycle()
    free = torch.cuda.mem_get_info()[0]
    locked = locked_bytes()
    for _ in range(1_000):
        cycle()
    assert free - torch.cuda.mem_get_info()[0] < 16 << 20
    assert locked_bytes() - locked < 16 << 20


def locked_bytes() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        sizes = {line.split(":")[0]: line.split()[1] for line in status}
    return 1024 * (int(sizes["VmPin"]) + int(sizes["VmLck"]) + int(sizes["VmRSS"]))


@pytest.mark.parametrize(("placement", "device"), EVERYWHERE[:4])
def test_rows_can_be_read_while_the_table_grows(placement, device):
    """Row `i` is `i` all over; readers never see another."""
    table = made(placement, device, 33, torch.int64)
    wrong, done = [], threading.Event()

    def read(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in itertools.count():
            last = done.is_set()
            size = len(table)
            ids = torch.randint(0, max(size, 1), (40,), generator=generator)[: size * 40]
            if not torch.equal(table[ids], ids.unsqueeze(1).expand(-1, 33)):
                wrong.append(ids)
            if last or wrong:
                return

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(2)]
    for reader in readers:
        reader.start()
    for first in range(0, 60_000, 1_500):
        table.append(torch.arange(first, first + 1_500).unsqueeze(1).expand(-1, 33))
    done.set()
    for reader in readers:
        reader.join()
    assert not wrong


def test_rows_can_be_read_while_auto_moves_them():
    table = FeatureTable(5, torch.int64, budget=40 * 10_000, device=EmulatedDevice())
    wrong, done = [], threading.Event()

    def read() -> None:
        while not done.is_set():
            ids = torch.arange(0, len(table), 7)
            if not torch.equal(table[ids], ids.unsqueeze(1).expand(-1, 5)):
                wrong.append(ids)

    reader = threading.Thread(target=read)
    reader.start()
    for first in range(0, 20_000, 1_000):
        table.append(torch.arange(first, first + 1_000).unsqueeze(1).expand(-1, 5))
    done.set()
    reader.join()
    assert table.placement == "uva"
    assert not wrong


@pytest.mark.parametrize("placement", get_args(Placement))
def test_every_placement_opens_and_gives_what_was_appended(placement):
    table = made(placement, None if placement in ("host", "disk") else "emulated", 3)
    rows = some_rows(7, 3)
    table.append(rows)
    assert torch.equal(table.start_gather(torch.tensor([6, 0, -1])).wait()[:2], rows[[6, 0]])
    said = table.describe()
    assert (said["rows"], said["row_bytes"], said["placement"]) == (7, 12, table.placement)
    assert table.base is table
    table.close()
