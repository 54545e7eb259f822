"""Hops as bipartite graphs without padding, for libraries that take lists of edges."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tgflow.batch import Block
from tgflow.events import NO_NODE
from tgflow.sampling.expand import Frontier
from tgflow.sampling.hops import Hops


@dataclass(frozen=True, slots=True, eq=False)
class BipartiteBlock:
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


def to_blocks(hops: Hops) -> list[BipartiteBlock]:
    """Return the hops without padding, lowest first, as messages are passed. Synchronizes."""
    num_roots = hops.frontiers[0].size
    pairs = zip(hops.frontiers, hops.frontiers[1:], hops.blocks, strict=False)
    return [_block(*pair, num_roots) for pair in reversed(list(pairs))]


def _block(targets: Frontier, below: Frontier, block: Block, num_roots: Tensor) -> BipartiteBlock:
    kept = _is_kept(below.nodes, num_roots)
    number = kept.cumsum(0) - 1  # of each row among the kept ones
    target, slot = block.mask.nonzero(as_tuple=True)
    source = block.neighbor[target, slot]
    edge_t = below.t[source]
    return BipartiteBlock(
        nodes=below.nodes[kept],
        t=below.t[kept],
        num_targets=int(_is_kept(targets.nodes, num_roots).sum()),
        source=number[source],
        target=number[target],
        eid=block.eid[target, slot],
        edge_t=edge_t,
        dt=targets.t[target] - edge_t,
    )


def _is_kept(nodes: Tensor, num_roots: Tensor) -> Tensor:
    """Whether a row of a frontier is more than padding: queries stay, whatever their node."""
    row = torch.arange(len(nodes), device=nodes.device)
    return (nodes != NO_NODE) | (row < num_roots)
