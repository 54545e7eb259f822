"""Bindings of the core that graphs use; its graph and log take CPU tensors."""

from __future__ import annotations

from torch import Tensor

from tgflow._core import Direction, Strategy
from tgflow._core import EventLog as EventLog
from tgflow._core import GrowingBytes as GrowingBytes
from tgflow._core import LogColumn as LogColumn
from tgflow._core import TemporalGraph as TemporalGraph
from tgflow._core import sample_neighbors as sample_neighbors
from tgflow.base.units import INT64_MAX
from tgflow.graph.events import EventBatch
from tgflow.graph.strategies import STRATEGIES

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
