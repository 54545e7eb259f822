"""Tables that move as they grow: released memory and concurrent readers."""

import gc
import itertools
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from helpers.devices import place_of
from helpers.emulator.device import EmulatedDevice
from helpers.made_tables import EVERYWHERE, expected_rows, made, some_rows
from tgflow.graph.tables import FeatureTable


@pytest.mark.parametrize("part", [100, 997, 40_000])
def test_budget_bounds_device_memory_during_moves(part):
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


def test_failed_registration_is_reported_once_and_rows_are_staged():
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


def test_registrations_are_released():
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
    assert room - gpu.host_bytes == 1_000 * 8  # error words, which are not pinned separately
    assert gpu.synchronized == 1_000  # never unpinned under a kernel


@pytest.mark.parametrize(("placement", "device"), EVERYWHERE[:4])
def test_rows_can_be_read_while_the_table_grows(placement, device):
    """Row `i` has only values `i`; readers must see no others."""
    table = made(placement, device, 33, torch.int64)
    done, place = threading.Event(), place_of(device)

    def read(seed):
        generator, last = torch.Generator().manual_seed(seed), False
        while not last:
            last, size = done.is_set(), len(table)
            ids = torch.randint(0, max(size, 1), (40,), generator=generator)[: size * 40]
            assert torch.equal(table[ids.to(place)].cpu(), ids.unsqueeze(1).expand(-1, 33))

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read, seed) for seed in range(2)]
        for first in range(0, 60_000, 1_500):
            table.append(torch.arange(first, first + 1_500).unsqueeze(1).expand(-1, 33))
        done.set()
    for reader in readers:
        reader.result()
