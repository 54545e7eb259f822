"""Other libraries as contenders: small adapters over their public classes, each optional."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

NOT_INSTALLED = "not installed: pip install 'tgflow-learn[bench]'"


class Peer(NamedTuple):
    """A model or a sampler of another library."""

    library: str
    """The name it is installed under."""
    module: str
    adapter: str


TGN = (
    Peer("torch_geometric", "benchmarks.peers.pyg", "PygTgn"),
    Peer("tgm-lib", "benchmarks.peers.tgm", "TgmTgn"),
    Peer("tglite", "benchmarks.peers.tglite", "TgliteTgn"),
)
TGAT = (
    Peer("tgm-lib", "benchmarks.peers.tgm", "TgmTgat"),
    Peer("tglite", "benchmarks.peers.tglite", "TgliteTgat"),
)
GRAPHMIXER = (Peer("tgm-lib", "benchmarks.peers.tgm", "TgmGraphMixer"),)
DYGFORMER = (Peer("tgm-lib", "benchmarks.peers.tgm_pairs", "TgmDyGFormer"),)
TPNET = (Peer("tgm-lib", "benchmarks.peers.tgm_pairs", "TgmTPNet"),)
SAMPLERS = (
    Peer("torch_geometric", "benchmarks.peers.pyg_sampler", "PygSampler"),
    Peer("tgm-lib", "benchmarks.peers.tgm_sampler", "TgmSampler"),
)


def load(peer: Peer, *args: Any) -> Any:
    """Return the peer's adapter, made from `args`; or a string, why it cannot take part."""
    try:
        version(peer.library)
        adapter = getattr(import_module(peer.module), peer.adapter)
    except PackageNotFoundError:
        return NOT_INSTALLED
    except ModuleNotFoundError as error:
        return f"{NOT_INSTALLED} ({error})"
    return adapter(*args)
