"""Layers of message passing: a hop without its padding, for libraries that take lists of edges."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tgflow.events import NO_NODE
from tgflow.sampling.hops import Hop, Hops


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A bipartite graph from source rows to target rows; the targets are the first source rows."""

    nodes: Tensor
    """int64 `[S]`: the nodes of the source rows; `NO_NODE` only where a query was."""
    t: Tensor
    """int64 `[S]`: ticks."""
    num_targets: int
    source: Tensor
    """int64 `[E]`: each edge's source row."""
    target: Tensor
    """int64 `[E]`: each edge's target row, ascending; a target's edges come newest first."""
    eid: Tensor
    """int64 `[E]`: log positions."""
    edge_t: Tensor
    """int64 `[E]`: ticks."""
    dt: Tensor
    """int64 `[E]`: ticks from the event to the target's time, more than 0."""


def layers_of(hops: Hops) -> list[Layer]:
    """Return the layers, lowest first: the order in which a model passes messages. Synchronizes."""
    num_roots = hops.hops[0].size
    below = (hops.nodes, hops.t)
    layers = []
    for hop in reversed(hops.hops):
        layers.append(_layer(hop, below, num_roots))
        below = (hop.nodes, hop.t)
    return layers


def _layer(hop: Hop, below: tuple[Tensor, Tensor], num_roots: Tensor) -> Layer:
    nodes, t = below
    kept = _is_kept(nodes, num_roots)
    number = kept.cumsum(0) - 1  # of each row among the kept ones
    target, slot = hop.neighbors.mask.nonzero(as_tuple=True)
    edge_t = hop.neighbors.t[target, slot]
    return Layer(
        nodes=nodes[kept],
        t=t[kept],
        num_targets=int(_is_kept(hop.nodes, num_roots).sum()),
        source=number[hop.row[target, slot]],
        target=number[target],
        eid=hop.neighbors.eid[target, slot],
        edge_t=edge_t,
        dt=hop.t[target] - edge_t,
    )


def _is_kept(nodes: Tensor, num_roots: Tensor) -> Tensor:
    """Whether a row of a frontier is more than padding: queries stay, whatever their node."""
    row = torch.arange(len(nodes), device=nodes.device)
    return (nodes != NO_NODE) | (row < num_roots)
