"""Bindings of the core that graphs use; its graph and log take CPU tensors."""

from __future__ import annotations

from torch import Tensor

from tgflow._core import Direction, GrowingBytes, LogColumn, Strategy, sample_neighbors
from tgflow._core import EventLog as Log
from tgflow._core import TemporalGraph as Graph
from tgflow.base.units import INT64_MAX
from tgflow.graph.events import EventBatch
from tgflow.graph.strategies import STRATEGIES

__all__ = [
    "DIRECTIONS",
    "NATIVE_STRATEGIES",
    "Graph",
    "GrowingBytes",
    "Log",
    "LogColumn",
    "columns",
    "cut_offs",
    "sample_neighbors",
]

DIRECTIONS = {name: getattr(Direction, name) for name in ("undirected", "directed", "bipartite")}
NATIVE_STRATEGIES = {name: getattr(Strategy, name) for name in STRATEGIES}


def columns(events: EventBatch) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the columns of a batch in the order of the core's arguments."""
    return events.src, events.dst, events.t, events.relation


def cut_offs(as_of: int | Tensor | None) -> tuple[Tensor | None, int]:
    """Return the cut-off of each query, or None, and the cut-off for all."""
    if isinstance(as_of, Tensor):
        return as_of, INT64_MAX
    return None, INT64_MAX if as_of is None else as_of
