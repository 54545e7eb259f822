"""Layers as blocks of DGL 1.1.3, the last release that imports beside a current PyTorch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tgflow.sampling.layers import Layer


def to_dgl(layers: Sequence[Layer]) -> list[Any]:
    """Return a `DGLBlock` per layer; see `Hops.to_dgl`."""
    dgl = import_dgl()
    return [_block(dgl, layer) for layer in layers]


def _block(dgl: Any, layer: Layer) -> Any:
    block = dgl.create_block(
        (layer.source, layer.target),
        num_src_nodes=len(layer.nodes),
        num_dst_nodes=layer.num_targets,
    )
    block.srcdata[dgl.NID], block.srcdata["t"] = layer.nodes, layer.t
    block.dstdata[dgl.NID] = layer.nodes[: layer.num_targets]
    block.dstdata["t"] = layer.t[: layer.num_targets]
    block.edata[dgl.EID] = layer.eid
    block.edata["t"], block.edata["dt"] = layer.edge_t, layer.dt
    return block


def import_dgl() -> Any:
    """Import DGL with PyTorch as its backend.

    Raises:
        ImportError: If it is not installed.
    """
    os.environ.setdefault("DGLBACKEND", "pytorch")  # or it writes a file to the user's home
    try:
        if find_spec("packaging") is None:
            # DGL then takes setuptools.extern.packaging, which setuptools 71 has dropped; to import
            # setuptools puts its own copy of packaging on the path.
            import_module("setuptools")
        return import_module("dgl")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"to_dgl() needs DGL 1.1.3, and {error.name} is not installed: "
            "pip install 'tgflow-learn[dgl]' (Python 3.11)"
        ) from error
