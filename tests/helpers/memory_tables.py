"""Every kind of table that supports node memory."""

from __future__ import annotations

import pytest
import torch

from helpers.devices import needs_apart, needs_cuda, opened, place_of
from tgflow.graph.cache import cached
from tgflow.graph.tables import FeatureTable
from tgflow.nn import NodeMemory
from tgflow.nn.memory_table import MemoryTable

KINDS = {  # place, its device, the cache's device (None for no cache)
    "host": ("host", None, None),
    "device": ("device", "emulated", None),
    "uva": ("uva", "emulated", None),
    "uva, cached": ("uva", "emulated", "emulated"),
    "host, cached on the device": ("host", None, "emulated"),
    "auto": ("auto", "emulated", None),
    "apart, device": ("device", "apart", None),
    "apart, uva": ("uva", "apart", None),
    "apart, uva, cached": ("uva", "apart", "apart"),
    "apart, host, cached": ("host", None, "apart"),
    "apart, auto": ("auto", "apart", None),
    "cuda, device": ("device", "cuda", None),
    "cuda, uva": ("uva", "cuda", None),
    "cuda, uva, cached": ("uva", "cuda", "cuda"),
    "cuda, host, cached": ("host", None, "cuda"),
    "cuda, auto": ("auto", "cuda", None),
}
NEEDS = {"cuda": needs_cuda, "apart": needs_apart}
for_each_kind = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=NEEDS.get(kind.split(",")[0], ())) for kind in KINDS]
)


def home_of(kind: str) -> torch.device:
    """Device of a model with memory in such a table."""
    return place_of(kind.split(",", maxsplit=1)[0])


def memory_table_of(kind: str, dim: int) -> MemoryTable:
    """An empty table; caches and budgets are small, so that rows are evicted and moved."""
    placement, device, cache = KINDS[kind]
    budget = 100 * 4 * dim if placement == "auto" else None
    gpu = None if device is None else opened(device)
    table = FeatureTable(dim, placement=placement, budget=budget, device=gpu)
    if cache is None:
        return table
    return cached(table, rows=3, device=gpu or opened(cache))


def with_past(memory: NodeMemory, num_events: int) -> NodeMemory:
    """Return `memory`, configured to keep the rows overwritten by this many events."""
    memory.keep_past(num_events)
    return memory
