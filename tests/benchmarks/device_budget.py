"""How much device memory a table with a budget takes while it grows past it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tgflow.bench.row import Params, Row
from tgflow.bench.setup import Options
from tgflow.tables import FeatureTable

if TYPE_CHECKING:
    from tgflow.cuda.device import Device

BUDGET = 1 << 30
APPENDS = 100


def budget_row(dim: int, gpu: Device, options: Options) -> Row:
    """The most that rows hold, moves included, which come to twice their budget."""
    budget = BUDGET >> (10 if options.quick else 0)
    on_cuda = gpu.device.type == "cuda"
    before = torch.cuda.memory_allocated(gpu.device) if on_cuda else 0
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(gpu.device)
    table, rows, most = (
        FeatureTable(dim, budget=budget, device=gpu),
        torch.rand(budget // APPENDS // (4 * dim), dim),
        0,
    )
    while len(table) * dim * 4 < 2 * budget:
        table.append(rows)
        most = max(most, table.nbytes if table.placement == "device" else 0)
    if on_cuda:
        most = torch.cuda.max_memory_allocated(gpu.device) - before
    table.close()
    params: Params = {"placement": "auto", "dim": dim, "budget": f"{budget / 2**20:g} MiB"}
    return Row("device memory", most / budget, "of the budget", params, 1.1)
