"""Native samplers of a node's earlier neighbors."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

from tgflow.graph import Neighbors, TemporalGraph
from tgflow.graph.sampling.rows import sample_neighbors
from tgflow.graph.strategies import Sampler

_RECENT, _UNIFORM = Sampler.recent(), Sampler.uniform()


def recent_neighbors(
    graph: TemporalGraph,
    nodes: Tensor,
    t: Tensor,
    k: int,
    as_of: int | Tensor | None = None,
    *,
    since: int = 0,
    relations: Collection[int] | None = None,
    out: Neighbors | None = None,
) -> Neighbors:
    """Return the `k` latest neighbors of each node, strictly before its query time.

    Args:
        graph: Graph to read; not modified.
        nodes: Query nodes, int64 `[Q]`, or, as `t` too, an array or a list. Unknown ones (`NO_NODE`
            and any outside of [0, `num_nodes`)) are no error: they have no history.
        t: Query times in ticks, int64 `[Q]`, in any order.
        k: Neighbors per query, at least 1.
        as_of: See only events at log positions below this, one for all or int64 `[Q]`.
            Default: the graph's snapshot, `graph.num_events`.
        since: First log position of the horizon: answers are those of a new graph of the events
            from there on. Default: 0, all.
        relations: Only events with one of these relations count. Takes time in proportion to the
            events skipped. Default: all do.
        out: Output; its tensors must match. Default: allocated.

    Returns:
        The neighbors, newest first; `out` if given. A node without history gives a row of padding.

    Raises:
        ValueError: If `k < 1`, a tensor has another dtype or length, or `relations` are given where
            the events have none.

    Example:
        >>> nodes, t = torch.tensor([0, 1]), torch.tensor([40, 40])
        >>> tg.sampling.recent_neighbors(graph, nodes, t, k=1).t.tolist()
        [[30], [20]]
    """
    return sample_neighbors(
        graph, _RECENT, nodes, t, k, as_of=as_of, since=since, relations=relations, out=out
    )


def uniform_neighbors(
    graph: TemporalGraph,
    nodes: Tensor,
    t: Tensor,
    k: int,
    *,
    key: int,
    as_of: int | Tensor | None = None,
    since: int = 0,
    relations: Collection[int] | None = None,
    out: Neighbors | None = None,
) -> Neighbors:
    """Return `k` distinct neighbors of each node, uniformly over its events before the time.

    Draws are a function of (`key`, row in this call, draw): the same at any thread count. Give each
    call its own key, `0 <= key < 2**64`, otherwise equal rows of two calls draw alike. A node
    with at most `k` returns them all. `relations` take time in proportion to the node's history.
    Arguments, result and errors are otherwise those of `recent_neighbors`.

    Example:
        >>> nodes, t = torch.tensor([0]), torch.tensor([40])
        >>> found = tg.sampling.uniform_neighbors(graph, nodes, t, k=2, key=1)
        >>> sorted(found.nodes[0].tolist())
        [2, 3]
    """
    sampler = _UNIFORM
    return sample_neighbors(
        graph, sampler, nodes, t, k, key=key, as_of=as_of, since=since, relations=relations, out=out
    )


def window_neighbors(
    graph: TemporalGraph,
    nodes: Tensor,
    t: Tensor,
    k: int,
    *,
    width: int,
    key: int,
    as_of: int | Tensor | None = None,
    since: int = 0,
    relations: Collection[int] | None = None,
    out: Neighbors | None = None,
) -> Neighbors:
    """Return `k` distinct neighbors of each node, each event in `[t - width, t)` equally likely.

    The window is at least 1 tick wide; other arguments are those of `recent_neighbors`, and the
    `key` of `uniform_neighbors`.

    Example:
        >>> nodes, t = torch.tensor([0]), torch.tensor([40])
        >>> tg.sampling.window_neighbors(graph, nodes, t, k=2, width=15, key=1).t.tolist()
        [[30, 0]]
    """
    sampler = Sampler.window(width=width)
    return sample_neighbors(
        graph, sampler, nodes, t, k, key=key, as_of=as_of, since=since, relations=relations, out=out
    )


def decayed_neighbors(
    graph: TemporalGraph,
    nodes: Tensor,
    t: Tensor,
    k: int,
    *,
    half_life: int,
    key: int,
    as_of: int | Tensor | None = None,
    since: int = 0,
    relations: Collection[int] | None = None,
    out: Neighbors | None = None,
) -> Neighbors:
    """Return `k` distinct neighbors of each node, drawn one by one, recent ones likelier.

    Each draw takes one of the remaining events, with probability in proportion to
    `2 ** -(age / half_life)`, a half-life of at least 1 tick: exactly, in integers, in O(k log n)
    for a history of n events. Draws of events without one of the `relations` are rejected, which
    takes time in proportion to how rare those are. Other arguments are those of
    `recent_neighbors`, and the `key` of `uniform_neighbors`.

    Example:
        >>> nodes, t = torch.tensor([0]), torch.tensor([40])
        >>> tg.sampling.decayed_neighbors(graph, nodes, t, k=2, half_life=10, key=1).count.tolist()
        [2]
    """
    sampler = Sampler.decayed(half_life=half_life)
    return sample_neighbors(
        graph, sampler, nodes, t, k, key=key, as_of=as_of, since=since, relations=relations, out=out
    )
