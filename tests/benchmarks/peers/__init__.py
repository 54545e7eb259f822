"""Adapters of other libraries over their public classes, each optional."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from tgflow.base.extras import install_command


class Peer(NamedTuple):
    """A model or a sampler of another library."""

    library: str
    """Name of the package."""
    module: str
    adapter: str


NOT_INSTALLED = f"not installed: {install_command('bench')}"
"""Reason of the skipped row of a library that is not installed."""
TGN = Peer("torch_geometric", "benchmarks.peers.pyg", "PygTgn")
TGAT = Peer("tgm-lib", "benchmarks.peers.tgm", "TgmTgat")
GRAPHMIXER = Peer("tgm-lib", "benchmarks.peers.tgm", "TgmGraphMixer")
DYGFORMER = Peer("tgm-lib", "benchmarks.peers.tgm_pairs", "TgmDyGFormer")
TPNET = Peer("tgm-lib", "benchmarks.peers.tgm_pairs", "TgmTPNet")
SAMPLER = Peer("torch_geometric", "benchmarks.peers.pyg_sampler", "PygSampler")
"""Of several libraries the fastest, of those that were measured."""


def load(peer: Peer, *args: Any) -> Any:
    """Return the peer's adapter built from `args`, or a string with the reason for skipping it."""
    try:
        version(peer.library)
        adapter = getattr(import_module(peer.module), peer.adapter)
    except PackageNotFoundError:
        return NOT_INSTALLED
    except ModuleNotFoundError as error:
        return f"{NOT_INSTALLED} ({error})"
    return adapter(*args)
