"""Hops as blocks of DGL 1.1.3, the last release that imports beside a current PyTorch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tgflow.sampling.blocks import BipartiteBlock, to_blocks
from tgflow.sampling.hops import Hops

_BACKEND = "DGLBACKEND"


def to_dgl(hops: Hops) -> list[Any]:
    """Return the hops as a `DGLBlock` each, lowest first. Synchronizes.

    Nodes carry `dgl.NID` and `t`, edges `dgl.EID` (log positions), `t` and `dt`, in ticks.
    Query `i` is destination `hops.roots[i]` of the last block.

    Raises:
        ImportError: If DGL is not installed.

    Example:
        >>> hops = tg.sample_hops(graph, torch.tensor([0]), torch.tensor([50]), fanouts=[2, 2])
        >>> [block.num_dst_nodes() for block in tg.sampling.to_dgl(hops)]
        [3, 1]
    """
    dgl = import_dgl()
    return [_dgl_block(dgl, block) for block in to_blocks(hops)]


def _dgl_block(dgl: Any, block: BipartiteBlock) -> Any:
    made = dgl.create_block(
        (block.source, block.target),
        num_src_nodes=len(block.nodes),
        num_dst_nodes=block.num_targets,
    )
    made.srcdata[dgl.NID], made.srcdata["t"] = block.nodes, block.t
    made.dstdata[dgl.NID] = block.nodes[: block.num_targets]
    made.dstdata["t"] = block.t[: block.num_targets]
    made.edata[dgl.EID] = block.eid
    made.edata["t"], made.edata["dt"] = block.edge_t, block.dt
    return made


def import_dgl() -> Any:
    """Import DGL with PyTorch as its backend."""
    try:
        if find_spec("packaging") is None:
            # DGL then takes setuptools.extern.packaging, which setuptools 71 has dropped; to import
            # setuptools puts its own copy of packaging on the path.
            import_module("setuptools")
        with _pytorch_backend():
            return import_module("dgl")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"to_dgl() needs DGL 1.1.3, and {error.name} is not installed: "
            "pip install 'tgflow-learn[dgl]' (Python 3.11)"
        ) from error


@contextmanager
def _pytorch_backend() -> Iterator[None]:
    """Name DGL's backend while it is imported, or it writes a file to the user's home."""
    if _BACKEND in os.environ:
        yield
        return
    os.environ[_BACKEND] = "pytorch"
    try:
        yield
    finally:
        del os.environ[_BACKEND]
