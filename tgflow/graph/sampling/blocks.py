"""Hops as bipartite graphs without padding: plain, for DGL 1.1.3, or for PyTorch Geometric."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from tgflow.base.extras import install_command
from tgflow.graph.batch import Block
from tgflow.graph.events import NO_NODE
from tgflow.graph.sampling.expand import Frontier
from tgflow.graph.sampling.hops import Hops


@dataclass(frozen=True, slots=True, eq=False)
class BipartiteBlock:
    """A bipartite graph from source rows to target rows; the targets are the first source rows."""

    nodes: Tensor
    """int64 `[S]`: the nodes of the source rows; `NO_NODE` only where it was queried."""
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
    """Return the hops without padding, lowest first, in message passing order. Synchronizes."""
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
    """Whether a row of a frontier is not padding; queries always count, whatever their node."""
    row = torch.arange(len(nodes), device=nodes.device)
    return (nodes != NO_NODE) | (row < num_roots)


def to_dgl(hops: Hops) -> list[Any]:
    """Return the hops as one `DGLBlock` each, lowest first. Synchronizes.

    Nodes carry `dgl.NID` and `t`, edges `dgl.EID` (log positions), `t` and `dt`, in ticks.
    Query `i` is destination `hops.roots[i]` of the last block.

    Raises:
        ImportError: If DGL is not installed.

    Example:
        >>> hops = tg.sample_hops(graph, torch.tensor([0]), torch.tensor([50]), fanouts=[2, 2])
        >>> [block.num_dst_nodes() for block in tg.sampling.to_dgl(hops)]
        [3, 1]
    """
    dgl, found = import_dgl(), []
    for block in to_blocks(hops):
        num, num_dst = len(block.nodes), block.num_targets
        ends = block.source, block.target
        made = dgl.create_block(ends, num_src_nodes=num, num_dst_nodes=num_dst)
        made.srcdata[dgl.NID], made.srcdata["t"] = block.nodes, block.t
        made.dstdata[dgl.NID], made.dstdata["t"] = block.nodes[:num_dst], block.t[:num_dst]
        made.edata[dgl.EID] = block.eid
        made.edata["t"], made.edata["dt"] = block.edge_t, block.dt
        found.append(made)
    return found


def import_dgl() -> Any:
    """Import DGL with PyTorch as its backend."""
    try:
        if find_spec("packaging") is None:
            # DGL then imports setuptools.extern.packaging, which setuptools 71 dropped; importing
            # setuptools puts its own copy of packaging on the path.
            import_module("setuptools")
        os.environ.setdefault("DGLBACKEND", "pytorch")  # otherwise DGL writes to the user's home
        return import_module("dgl")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"to_dgl() needs DGL 1.1.3, and {error.name} is not installed: "
            f"{install_command('dgl')} (Python 3.11)"
        ) from error


def to_pyg(hops: Hops) -> list[Any]:
    """Return the hops as one `torch_geometric.data.Data` each, lowest first. Synchronizes.

    Each has `edge_index`, `n_id`, `t`, and per edge `e_id` (log positions), `edge_t` and `dt`, in
    ticks. The first `num_targets` nodes are the targets, so that a convolution is
    `x = conv((x, x[:data.num_targets]), data.edge_index)`; query `i` is row `hops.roots[i]` of the
    last one's result.

    Raises:
        ImportError: If PyTorch Geometric is not installed.

    Example:
        >>> hops = tg.sample_hops(graph, torch.tensor([0]), torch.tensor([50]), fanouts=[2, 2])
        >>> [data.num_targets for data in tg.sampling.to_pyg(hops)]
        [3, 1]
    """
    try:
        from torch_geometric.data import Data
    except ImportError as error:
        raise ImportError(f"to_pyg() needs PyTorch Geometric: {install_command('pyg')}") from error
    return [
        Data(
            edge_index=torch.stack([block.source, block.target]),
            n_id=block.nodes,
            t=block.t,
            e_id=block.eid,
            edge_t=block.edge_t,
            dt=block.dt,
            num_targets=block.num_targets,
            num_nodes=len(block.nodes),
        )
        for block in to_blocks(hops)
    ]
