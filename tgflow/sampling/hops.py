"""Neighborhoods of several hops: fixed shapes, on the queries' device, no synchronization."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tgflow import _core
from tgflow.choices import Strategy
from tgflow.graph import TemporalGraph
from tgflow.sampling.distinct import distinct_queries
from tgflow.sampling.rows import Neighbors, sample_neighbors
from tgflow.sampling.sampler import Sampler

if TYPE_CHECKING:
    from tgflow.sampling.layers import Layer

_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True, eq=False)
class Hop:
    """One hop: targets and their neighbors, all of which are rows of the frontier below.

    The targets are its first rows, in the same order. A neighbor is there at its event's time.
    """

    nodes: Tensor
    """int64 `[N]`: the targets. Rows from `size` on hold `NO_NODE`."""
    t: Tensor
    """int64 `[N]`: ticks."""
    size: Tensor
    """int64 `[]`: how many of the rows are in use; fewer than N only with `dedup`."""
    neighbors: Neighbors
    """`[N, k]`."""
    row: Tensor
    """int64 `[N, k]`: the row of each neighbor in the frontier below; valid where none is, too."""


@dataclass(frozen=True, slots=True, eq=False)
class Hops:
    """What `sample_hops` returns: hops from the roots down, and the frontier below the last."""

    roots: Tensor
    """int64 `[Q]`: the row of each query among the first hop's targets."""
    hops: tuple[Hop, ...]
    nodes: Tensor
    """int64 `[M]`: the lowest frontier, whose features a model reads; `NO_NODE` where none is."""
    t: Tensor
    """int64 `[M]`: ticks."""
    size: Tensor
    """int64 `[]`: rows of the lowest frontier in use."""

    def layers(self) -> list[Layer]:
        """Return the layers of message passing without the padding. Synchronizes."""
        from tgflow.sampling.layers import layers_of

        return layers_of(self)

    def to_dgl(self) -> list[Any]:
        """Return the layers as DGL blocks (DGL 1.1.3), lowest first. Synchronizes.

        Nodes carry `dgl.NID` and `t`, edges `dgl.EID` (log positions), `t` and `dt`, in ticks.
        Query `i` is destination `roots[i]` of the last block.

        Raises:
            ImportError: If DGL is not installed.
        """
        from tgflow.sampling.to_dgl import to_dgl

        return to_dgl(self.layers())

    def to_pyg(self) -> list[Any]:
        """Return the layers as `torch_geometric.data.Data`, lowest first. Synchronizes.

        Each has `edge_index`, `n_id`, `t`, and per edge `e_id` (log positions), `edge_t` and `dt`,
        in ticks. The first `num_targets` nodes are the layer's targets, so that a convolution is
        `x = conv((x, x[:data.num_targets]), data.edge_index)`; query `i` is row `roots[i]` of the
        last one's result.

        Raises:
            ImportError: If PyTorch Geometric is not installed.
        """
        from tgflow.sampling.to_pyg import to_pyg

        return to_pyg(self.layers())


def sample_hops(
    graph: TemporalGraph,
    nodes: Tensor,
    t: Tensor,
    fanouts: Sequence[int],
    *,
    sampler: Sampler | Strategy = "recent",
    key: int = 0,
    before: int | Tensor | None = None,
    types: Collection[int] | None = None,
    dedup: bool = False,
) -> Hops:
    """Sample neighbors, then theirs, each strictly before the event by which it was reached.

    Every hop's targets are sampled again in the next, beside their neighbors, as message passing
    wants it: a layer's targets are then inputs of it too.

    Args:
        graph: Graph to read; not modified.
        nodes: Query nodes, int64 `[Q]`.
        t: Query times in ticks, int64 `[Q]`.
        fanouts: Neighbors per query of each hop, from the roots down; at least one hop.
        sampler: Which neighbors are taken; a name will do for `recent` and `uniform`.
        key: Random key; hop `h` draws with the `h`-th splitmix64 number from it.
        before: See only events at log positions below this, one for all or int64 `[Q]`: what is
            reached from a query has its cut-off. None: on the CPU, all hops see the events there
            are at the start. On a GPU each hop sees those there are when its kernel begins, so
            that a captured CUDA graph sees the store grow: beside a writer on another stream, give
            `graph.num_events` for hops that agree.
        types: Only events with one of these labels count.
        dedup: Whether equal (node, time) pairs of a frontier are sampled once. Shapes stay as they
            are without; `size` says how many rows are in use.

    Returns:
        The hops. Frontier `h + 1` has `1 + fanouts[h]` times the rows of frontier `h`.

    Raises:
        ValueError: If there are no fanouts, or as the sampler raises.
    """
    if not fanouts:
        raise ValueError("fanouts must name the neighbors of at least one hop, got none")
    if isinstance(sampler, str):
        sampler = Sampler(sampler)
    if before is None and graph.device.type == "cpu":
        before = graph.num_events
    limits = before if isinstance(before, Tensor) else None
    rows = torch.arange(len(nodes) * prod(1 + k for k in fanouts), device=nodes.device)
    roots, size = rows[: len(nodes)], _size_of(nodes)
    if dedup:
        (nodes, t, limits), roots, size = distinct_queries(nodes, t, limits)
    hops = []
    for hop, k in enumerate(fanouts):
        num = len(nodes)
        below, below_t = _with_room(nodes, k), _with_room(t, k)
        found = Neighbors.empty(num, k, nodes.device)
        found.nodes, found.t = below[num:].view(num, k), below_t[num:].view(num, k)
        sample_neighbors(
            graph, sampler, nodes, t, k, key=hop_key(key, hop),
            before=before if limits is None else limits, types=types, out=found,
        )  # fmt: skip
        if limits is not None:
            limits = torch.cat([limits, limits.repeat_interleave(k, output_size=num * k)])
        row, below_size = rows[: len(below)], _size_of(below)
        if dedup:
            (below, below_t, limits), row, below_size = distinct_queries(below, below_t, limits)
        hops.append(Hop(nodes, t, size, found, row[num:].view(num, k)))
        nodes, t, size = below, below_t, below_size
    return Hops(roots, tuple(hops), nodes, t, size)


def hop_key(key: int, hop: int) -> int:
    """Return the key of a hop's draws."""
    return _core.mix64((key + _GOLDEN * (hop + 1)) % 2**64)


def _with_room(column: Tensor, k: int) -> Tensor:
    """Return `column` and, behind it, room for `k` values each: written in place, not copied."""
    longer = column.new_empty(len(column) * (1 + k))
    longer[: len(column)] = column
    return longer


def _size_of(column: Tensor) -> Tensor:
    return torch.full((), len(column), device=column.device)
