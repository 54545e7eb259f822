"""Feature tables of generated rows in every placement, and those that hold memory."""

import pytest
import torch

from helpers.devices import needs_apart, needs_cuda, opened, place_of
from tgflow.graph.tables import FeatureTable

EVERYWHERE = [
    ("host", None),
    ("disk", None),
    pytest.param("device", "apart", marks=needs_apart),
    pytest.param("uva", "apart", marks=needs_apart),
    pytest.param("device", "cuda", marks=needs_cuda),
    pytest.param("uva", "cuda", marks=needs_cuda),
]
for_each_placement = pytest.mark.parametrize(("placement", "device"), EVERYWHERE)
for_each_place_that_changes = pytest.mark.parametrize(
    ("placement", "device"), [placement for placement in EVERYWHERE if placement != ("disk", None)]
)


def made(placement, device, dim, dtype=torch.float32, **options):
    gpu = None if device is None else opened(device)
    return FeatureTable(dim, dtype, placement, device=gpu, **options)


def home(table, device):
    """Device of the ids passed to this table."""
    return place_of(device)


def some_rows(size, dim, dtype=torch.float32):
    generator = torch.Generator().manual_seed(size * 1000 + dim)
    if dtype == torch.bool:
        return torch.rand(size, dim, generator=generator) < 0.5
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(0, 100, (size, dim), generator=generator).to(dtype)
    return torch.randn(size, dim, generator=generator).to(dtype)


def expected_rows(rows, ids):
    return torch.cat([rows, torch.zeros_like(rows[:1])])[ids] if len(rows) else rows[:0][ids]


for_each_memory_table = pytest.mark.parametrize(
    ("placement", "device"),
    [
        EVERYWHERE[0],
        *EVERYWHERE[2:],
        pytest.param("auto", "apart", marks=needs_apart),
        pytest.param("auto", "cuda", marks=needs_cuda),
    ],
)


def memory_table_of(placement, device, dim):
    """An empty table; budgets are small, so that rows are moved."""
    return made(placement, device, dim, budget=100 * 4 * dim if placement == "auto" else None)


def with_past(memory, num_events):
    """Return `memory`, configured to keep the rows overwritten by this many events."""
    memory.keep_past(num_events)
    return memory
