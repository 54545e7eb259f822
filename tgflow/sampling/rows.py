"""One call of the core: queries in, rows of neighbors out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from tgflow import _core
from tgflow.events import NO_NODE
from tgflow.graph import TemporalGraph
from tgflow.sampling.sampler import Sampler, type_bits
from tgflow.units import INT64_MAX


@dataclass(slots=True, eq=False)
class Neighbors:
    """Up to `k` neighbors of each query, newest first.

    Missing slots come last and hold `NO_NODE`, time 0 and event -1.
    """

    nodes: Tensor
    """int64 `[Q, k]`."""
    t: Tensor
    """int64 `[Q, k]`: ticks."""
    eid: Tensor
    """int64 `[Q, k]`: log positions."""
    count: Tensor
    """int32 `[Q]`: filled slots of each row."""

    @classmethod
    def empty(cls, size: int, k: int, device: torch.device | str = "cpu") -> Neighbors:
        """Return room for the answers to `size` queries, not yet filled: as `out=` of a sampler."""
        nodes = torch.empty(size, k, dtype=torch.int64, device=device)
        count = torch.empty(size, dtype=torch.int32, device=device)
        return cls(nodes, torch.empty_like(nodes), torch.empty_like(nodes), count)

    @property
    def mask(self) -> Tensor:
        """Bool `[Q, k]`: whether the slot holds a neighbor."""
        return self.nodes != NO_NODE


def sample_neighbors(
    graph: TemporalGraph,
    sampler: Sampler,
    nodes: Tensor,
    t: Tensor,
    k: int,
    *,
    key: int = 0,
    as_of: int | Tensor | None = None,
    types: Collection[int] | None = None,
    out: Neighbors | None = None,
) -> Neighbors:
    """Return `k` neighbors of each node: as the function `STRATEGY_neighbors` of the sampler says.

    Takes what those functions take and raises what they raise; `key` is for strategies that draw.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    size = nodes.numel()
    device = graph.device
    nodes = _column("nodes", nodes, size, device)
    t = _column("t", t, size, device)
    limits, limit = 0, INT64_MAX
    if isinstance(as_of, Tensor):
        as_of = _column("as_of", as_of, size, device)
        limits = as_of.data_ptr()
    elif as_of is not None:
        limit = as_of
    bits = None if types is None else type_bits(types, device)
    if out is None:
        out = Neighbors.empty(size, k, device)
    else:
        _check_out(out, size, k, device)
    native, spec = graph._native, sampler.spec(key, bits)
    asked = (nodes.data_ptr(), t.data_ptr(), limits, limit, size, k)
    answers = (out.nodes.data_ptr(), out.t.data_ptr(), out.eid.data_ptr(), out.count.data_ptr())
    if isinstance(native, _core.TemporalGraph):
        _core.sample_neighbors(native, spec, *asked, *answers)
    else:
        native.sample_neighbors(spec, *asked, *answers)
    return out


def _column(name: str, values: Tensor, size: int, device: torch.device) -> Tensor:
    """Return `values` as they are read: int64 `[size]` on the graph's device, or ValueError."""
    if values.dtype is not torch.int64 or values.shape != (size,) or values.device != device:
        raise ValueError(
            f"{name} must be int64 [{size}] on {_name(device)}, "
            f"got {values.dtype} {list(values.shape)} on {values.device}"
        )
    return values.contiguous()


def _name(device: torch.device) -> str:
    return "the CPU" if device.type == "cpu" else f"{device}, as the graph is"


def _check_out(out: Neighbors, size: int, k: int, device: torch.device) -> None:
    for name, shape, dtype in (
        ("nodes", (size, k), torch.int64),
        ("t", (size, k), torch.int64),
        ("eid", (size, k), torch.int64),
        ("count", (size,), torch.int32),
    ):
        column: Tensor = getattr(out, name)
        fits = column.shape == shape and column.dtype is dtype and column.device == device
        if not fits or not column.is_contiguous():
            raise ValueError(
                f"out.{name} must be contiguous {dtype} {list(shape)} on {_name(device)}, "
                f"got {column.dtype} {list(column.shape)} on {column.device}"
            )
