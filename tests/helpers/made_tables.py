"""Feature tables of generated rows in every placement, and those that hold memory."""

from __future__ import annotations

import pytest
import torch

from helpers.devices import needs_apart, needs_cuda, opened, place_of
from tgflow.graph.tables import FeatureTable
from tgflow.nn import NodeMemory
from tgflow.nn.memory_table import MemoryTable

EVERYWHERE = [
    ("host", None),
    ("disk", None),
    ("device", "emulated"),
    ("uva", "emulated"),
    pytest.param("device", "apart", marks=needs_apart),
    pytest.param("uva", "apart", marks=needs_apart),
    pytest.param("device", "cuda", marks=needs_cuda),
    pytest.param("uva", "cuda", marks=needs_cuda),
]
for_each_placement = pytest.mark.parametrize(("placement", "device"), EVERYWHERE)
for_each_place_that_changes = pytest.mark.parametrize(
    ("placement", "device"), [placement for placement in EVERYWHERE if placement != ("disk", None)]
)


def made(
    placement: str, device: str | None, dim: int, dtype=torch.float32, **options
) -> FeatureTable:
    gpu = None if device is None else opened(device)
    return FeatureTable(dim, dtype, placement, device=gpu, **options)


def home(table: FeatureTable, device: str | None) -> torch.device:
    """Device of the ids passed to this table."""
    return place_of(device)


def some_rows(size: int, dim: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size * 1000 + dim)
    if dtype == torch.bool:
        return torch.rand(size, dim, generator=generator) < 0.5
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(0, 100, (size, dim), generator=generator).to(dtype)
    return torch.randn(size, dim, generator=generator).to(dtype)


def expected_rows(rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.cat([rows, torch.zeros_like(rows[:1])])[ids] if len(rows) else rows[:0][ids]


MEMORY_KINDS = {  # placement, its device
    "host": ("host", None),
    "device": ("device", "emulated"),
    "uva": ("uva", "emulated"),
    "auto": ("auto", "emulated"),
    "apart, device": ("device", "apart"),
    "apart, uva": ("uva", "apart"),
    "apart, auto": ("auto", "apart"),
    "cuda, device": ("device", "cuda"),
    "cuda, uva": ("uva", "cuda"),
    "cuda, auto": ("auto", "cuda"),
}
NEEDS = {"cuda": needs_cuda, "apart": needs_apart}
for_each_kind = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=NEEDS.get(kind.split(",")[0], ())) for kind in MEMORY_KINDS]
)


def home_of(kind: str) -> torch.device:
    """Device of a model with memory in such a table."""
    return place_of(kind.split(",", maxsplit=1)[0])


def memory_table_of(kind: str, dim: int) -> MemoryTable:
    """An empty table; budgets are small, so that rows are moved."""
    placement, device = MEMORY_KINDS[kind]
    budget = 100 * 4 * dim if placement == "auto" else None
    gpu = None if device is None else opened(device)
    return FeatureTable(dim, placement=placement, budget=budget, device=gpu)


def with_past(memory: NodeMemory, num_events: int) -> NodeMemory:
    """Return `memory`, configured to keep the rows overwritten by this many events."""
    memory.keep_past(num_events)
    return memory
