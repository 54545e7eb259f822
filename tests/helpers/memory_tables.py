"""Every kind of table that supports node memory."""

from __future__ import annotations

import pytest
import torch

from helpers.devices import needs_apart, needs_cuda, opened, place_of
from tgflow.graph.tables import FeatureTable
from tgflow.nn import NodeMemory
from tgflow.nn.memory_table import MemoryTable

KINDS = {  # placement, its device
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
    "kind", [pytest.param(kind, marks=NEEDS.get(kind.split(",")[0], ())) for kind in KINDS]
)


def home_of(kind: str) -> torch.device:
    """Device of a model with memory in such a table."""
    return place_of(kind.split(",", maxsplit=1)[0])


def memory_table_of(kind: str, dim: int) -> MemoryTable:
    """An empty table; budgets are small, so that rows are moved."""
    placement, device = KINDS[kind]
    budget = 100 * 4 * dim if placement == "auto" else None
    gpu = None if device is None else opened(device)
    return FeatureTable(dim, placement=placement, budget=budget, device=gpu)


def with_past(memory: NodeMemory, num_events: int) -> NodeMemory:
    """Return `memory`, configured to keep the rows overwritten by this many events."""
    memory.keep_past(num_events)
    return memory
