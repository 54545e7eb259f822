"""One call of the core: queries in, rows of neighbors out."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from tgflow.graph import Neighbors, TemporalGraph
from tgflow.graph.query import Queries
from tgflow.peers import Shard
from tgflow.sampler import Sampler


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
    rows: Tensor | None = None,
    out: Neighbors | None = None,
    params: Tensor | None = None,
) -> Neighbors:
    """Return `k` neighbors of each node: as the function `STRATEGY_neighbors` of the sampler says.

    Takes what those functions take and raises what they raise; `key` is for strategies that draw,
    and `params`, on a GPU alone, as `Queries` has it. `rows`, int64 `[Q]`, are the queries' rows in
    a larger call, of which this is a part: each draws what it would draw there.

    Raises:
        ValueError: Also if the graph is a shard, and a node is another rank's. On a GPU this waits.

    Example:
        >>> nodes, t = torch.tensor([0, 1]), torch.tensor([40, 40])
        >>> tg.sampling.sample_neighbors(graph, tg.Sampler.recent(), nodes, t, k=1).nodes.tolist()
        [[3], [3]]
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if not 0 <= key < 2**64:
        raise ValueError(f"key must be in [0, 2**64), got {key}")
    size = nodes.numel()
    device = graph.device
    nodes = _column("nodes", nodes, size, device)
    if graph.shard.world > 1:
        _check_held(graph.shard, nodes)
    t = _column("t", t, size, device)
    if isinstance(as_of, Tensor):
        as_of = _column("as_of", as_of, size, device)
    if rows is not None:
        rows = _column("rows", rows, size, device)
    bits = None if types is None else graph.type_bits(types)
    if out is None:
        out = Neighbors.empty(size, k, device)
    else:
        _check_out(out, size, k, device)
    graph.backend.sample(sampler, Queries(nodes, t, as_of, key, bits, params, rows), out)
    return out


def _column(name: str, values: Tensor, size: int, device: torch.device) -> Tensor:
    """Return `values` as they are read: int64 `[size]` on the graph's device, or ValueError."""
    if values.dtype is not torch.int64 or values.shape != (size,) or values.device != device:
        raise ValueError(
            f"{name} must be int64 [{size}] on {_name(device)}, "
            f"got {values.dtype} {list(values.shape)} on {values.device}"
        )
    return values.contiguous()


def _check_held(shard: Shard, nodes: Tensor) -> None:
    """Raise ValueError if a node is with another rank."""
    others = (nodes >= 0) & ~shard.owns(nodes)
    if bool(others.any()):
        node = int(nodes[others][0])
        raise ValueError(
            f"node {node} is with rank {shard.owner(node)} of {shard.world}, and this graph has "
            f"the neighbors of rank {shard.rank}'s nodes alone; ask all ranks together "
            "(tgflow.distributed.AskingSampler), or make the graph without shard="
        )


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
