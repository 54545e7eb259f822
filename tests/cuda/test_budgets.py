"""What a call of tables and caches costs the host: launches and operations of torch.

Each launch is microseconds of Python and driver, each operation as many or more: what is done
for every batch is to stay within its budget, which may only fall. Nothing waits for the device.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from helpers.devices import needs_apart
from helpers.emulator.device import EmulatedDevice
from helpers.emulator.tensors import watching
from helpers.made_tables import some_rows
from tgflow.cache import cached
from tgflow.tables import FeatureTable

pytestmark = needs_apart[0]


class Budget(NamedTuple):
    launches: int
    operations: int


BUDGETS = {
    ("gather", "device"): Budget(1, 1),
    ("gather", "uva"): Budget(1, 1),
    ("gather into", "device"): Budget(1, 0),
    ("gather into", "uva"): Budget(1, 0),
    ("scatter", "device"): Budget(1, 3),
    ("scatter", "uva"): Budget(1, 3),
    ("append", "device"): Budget(1, 7),
    ("cached gather", "uva"): Budget(4, 5),
    ("cached scatter", "uva"): Budget(3, 5),
}


@pytest.mark.parametrize(("what", "placement"), BUDGETS, ids=lambda part: part)
def test_a_call_costs_the_host_no_more(what, placement):
    gpu = EmulatedDevice.apart()
    table = FeatureTable(6, placement=placement, device=gpu)
    table.append(some_rows(2_000, 6))
    if what.startswith("cached"):
        table = cached(table, rows=60, device=gpu)
    ids, rows = torch.arange(40).to(gpu.device), some_rows(40, 6).to(gpu.device)
    out = torch.empty_like(rows)
    call = {
        "gather": lambda: table.gather(ids),
        "gather into": lambda: table.gather(ids, out),
        "cached gather": lambda: table.gather(ids, out),
        "scatter": lambda: table.scatter_(ids, rows),
        "cached scatter": lambda: table.scatter_(ids, rows),
        "append": lambda: table.append(rows),
    }[what]
    call()
    gpu.kernels.launches.clear()
    with watching() as watch:
        call()
    assert watch.waits == []
    spent = Budget(len(gpu.kernels.launches), watch.operations.total())
    assert spent == BUDGETS[what, placement], (gpu.kernels.launches, watch.operations)
