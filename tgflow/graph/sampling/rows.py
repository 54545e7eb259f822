"""Sampling of one hop, by the core or by a Python function."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tgflow.base.peers import Shard
from tgflow.graph import Neighbors, TemporalGraph
from tgflow.graph.events import NO_EVENT, NO_NODE, as_column
from tgflow.graph.query import Queries
from tgflow.graph.strategies import Sampler, SamplerFunction


def sample_neighbors(
    graph: TemporalGraph,
    sampler: Sampler,
    nodes: Tensor,
    t: Tensor,
    k: int,
    *,
    key: int = 0,
    as_of: int | Tensor | None = None,
    since: int = 0,
    relations: Collection[int] | None = None,
    rows: Tensor | None = None,
    out: Neighbors | None = None,
    params: Tensor | None = None,
) -> Neighbors:
    """Return `k` neighbors of each node, by the sampler's function `STRATEGY_neighbors`.

    Arguments, unknown nodes and errors as for those functions; `key` is for strategies that draw,
    and `params`, on a GPU only, as in `Queries`. `rows`, int64 `[Q]`, are the queries' rows in
    a larger call of which this is a part, and key their draws.

    Raises:
        ValueError: Also if the graph is a shard, and a node is another rank's, for which a GPU
            is synchronized; or if a sampler function does not support this graph or these
            arguments, or returns an event that the query must not see.

    Example:
        >>> nodes, t = torch.tensor([0, 1]), torch.tensor([40, 40])
        >>> tg.sampling.sample_neighbors(graph, tg.Sampler.recent(), nodes, t, k=1).nodes.tolist()
        [[3], [3]]
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if not 0 <= key < 2**64:
        raise ValueError(f"key must be in [0, 2**64), got {key}")
    if not 0 <= since <= graph.num_events:
        raise ValueError(f"since must be a log position in [0, {graph.num_events}], got {since}")
    if callable(sampler.strategy):
        check_samplable(graph, sampler)
        if relations is not None or rows is not None:
            raise ValueError("a sampler function takes neither relations= nor rows=")
    device = graph.device
    size = (nodes := column_on("nodes", nodes, device)).numel()
    nodes, t = _column("nodes", nodes, size, device), _column("t", t, size, device)
    if graph.shard.world > 1:
        _check_held(graph.shard, nodes)
    if not (as_of is None or isinstance(as_of, int)):
        as_of = _column("as_of", as_of, size, device)
    if rows is not None:
        rows = _column("rows", rows, size, device)
    bits = None if relations is None else graph.relation_bits(tuple(relations), device)
    if out is None:
        out = Neighbors.empty(size, k, device)
    else:
        _check_out(out, size, k, device)
    queries = Queries(nodes, t, as_of, since, key, bits, params, rows)
    if callable(sampler.strategy):
        _sample_by(sampler.strategy, graph, queries, k, out)
    else:
        graph.backend.sample(sampler, queries, out)
    return out


def check_samplable(graph: TemporalGraph, sampler: Sampler) -> None:
    """Raise ValueError if a sampler function would read a graph on a GPU, or a shard."""
    if not callable(sampler.strategy):
        return
    if graph.gpu is not None:
        raise ValueError(
            f"a sampler function requires a graph on the CPU, got one on {graph.device}; make the "
            'graph without device=, or use a native strategy such as "recent"'
        )
    if graph.shard.world > 1:
        raise ValueError(
            f"a sampler function requires the whole graph, got shard {graph.shard.rank} of "
            f'{graph.shard.world}; run one process, or use a native strategy such as "recent"'
        )


def _sample_by(
    function: SamplerFunction, graph: TemporalGraph, queries: Queries, k: int, out: Neighbors
) -> None:
    """Fill `out` with the neighbors of the events that a function returns, after checking them."""
    nodes, t, num_events = queries.nodes, queries.t, graph.num_events
    if isinstance(queries.as_of, torch.Tensor):
        before = queries.as_of.clamp(max=num_events)
    else:
        limit = num_events if queries.as_of is None else min(queries.as_of, num_events)
        before = torch.full_like(nodes, limit)
    # copies: a function must not modify the caller's tensors
    given = nodes.clone(), t.clone(), before.clone(), queries.since
    eid = function(graph, *given, k, queries.key)
    check_returned("sampler function", eid, [len(nodes), k])
    eid = eid.sort(dim=1, descending=True).values
    is_found = eid != NO_EVENT
    _refuse(eid < NO_EVENT, eid, "which is not a log position; use -1 for a missing neighbor")
    is_outside = is_found & (eid < queries.since)
    _refuse(is_outside, eid, f"which is before the horizon, `since` ({queries.since})")
    _refuse(
        is_found & (eid >= before[:, None]), eid, "which is not below the query's cut-off `before`"
    )
    _refuse(
        is_found[:, 1:] & (eid[:, 1:] == eid[:, :-1]), eid[:, 1:], "more than once for one query"
    )
    events = graph.log.gather(eid[is_found])
    times = torch.zeros_like(eid).masked_scatter_(is_found, events.t)
    src = torch.full_like(eid, NO_NODE).masked_scatter_(is_found, events.src)
    dst = torch.full_like(eid, NO_NODE).masked_scatter_(is_found, events.dst)
    _refuse(is_found & (times >= t[:, None]), eid, "which is not earlier than the query's time `t`")
    is_src = src == nodes[:, None]
    is_dst = (dst == nodes[:, None]) & (graph.direction != "directed")
    _refuse(is_found & ~is_src & ~is_dst, eid, "which is not an edge of the query's node")
    neighbor = torch.where(is_src, dst, src)
    # late events are earlier than ones below them in the log
    order = times.masked_fill(~is_found, torch.iinfo(torch.int64).min)
    order = order.sort(dim=1, descending=True, stable=True).indices
    out.nodes.copy_(neighbor.gather(1, order))
    out.t.copy_(times.gather(1, order))
    out.eid.copy_(eid.gather(1, order))
    out.count.copy_(is_found.sum(1))


def check_returned(what: str, found: Any, shape: list[int]) -> None:
    """Raise ValueError unless a user's function returned int64 of this shape on the CPU."""
    got = type(found).__name__
    if isinstance(found, Tensor):
        got = f"{found.dtype} {list(found.shape)} on {found.device}"
    if got != f"torch.int64 {shape} on cpu":
        raise ValueError(f"a {what} must return int64 {shape}, got {got}")


def refuse_returned(what: str, is_wrong: Tensor, found: Tensor, why: str) -> None:
    """Raise ValueError if any value that a user's function returned, `[Q, k]`, is wrong."""
    if bool(is_wrong.any()):
        row = int(is_wrong.any(dim=1).nonzero()[0])
        value = int(found[row][is_wrong[row]][0])
        raise ValueError(f"the {what} returned {value} for row {row}, {why}")


_refuse = partial(refuse_returned, "sampler function")


def column_on(name: str, values: Any, device: torch.device) -> Tensor:
    """Return a NumPy array or list of integers as a tensor on the device, a tensor as given."""
    return values if isinstance(values, Tensor) else as_column(name, values).to(device)


def _column(name: str, values: Tensor, size: int, device: torch.device) -> Tensor:
    """Return `values` if they are int64 `[size]` on the graph's device, else raise ValueError."""
    values = column_on(name, values, device)
    if values.dtype is not torch.int64 or values.shape != (size,) or values.device != device:
        raise ValueError(
            f"{name} must be int64 [{size}] on {_name(device)}, "
            f"got {values.dtype} {list(values.shape)} on {values.device}"
        )
    return values.contiguous()


def _check_held(shard: Shard, nodes: Tensor) -> None:
    others = (nodes >= 0) & ~shard.owns(nodes)
    if bool(others.any()):
        node = int(nodes[others][0])
        raise ValueError(
            f"node {node} is with rank {shard.owner(node)} of {shard.world}, and this graph has "
            f"the neighbors of rank {shard.rank}'s nodes alone; ask all ranks together "
            "(tgflow.ranks.sharded_sampling.ShardedSampler), or make the graph without shard="
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
