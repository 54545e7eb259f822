"""Adapters of other libraries over their public classes, each optional."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from tgflow.base.choices import Visibility
from tgflow.base.extras import install_command


class Peer(NamedTuple):
    """A model or a sampler of another library."""

    library: str
    """Name of the package."""
    module: str
    adapter: str
    way_in: str = install_command("bench")
    """Install command."""
    visibility: Visibility = "batch"
    """Of its neighborhoods in training."""

    @property
    def not_installed(self) -> str:
        """Reason of the skipped row of a library that is not installed."""
        return f"not installed: {self.way_in}"


_BUILT = "build it from its sdist, see tests/benchmarks/peers/tglite.py"

TGN = (
    Peer("torch_geometric", "benchmarks.peers.pyg", "PygTgn"),
    Peer("tgm-lib", "benchmarks.peers.tgm", "TgmTgn"),
    Peer("tglite", "benchmarks.peers.tglite", "TgliteTgn", _BUILT, "event"),
)
TGAT = (
    Peer("tgm-lib", "benchmarks.peers.tgm", "TgmTgat"),
    Peer("tglite", "benchmarks.peers.tglite", "TgliteTgat", _BUILT, "event"),
)
GRAPHMIXER = (Peer("tgm-lib", "benchmarks.peers.tgm", "TgmGraphMixer"),)
DYGFORMER = (Peer("tgm-lib", "benchmarks.peers.tgm_pairs", "TgmDyGFormer"),)
TPNET = (Peer("tgm-lib", "benchmarks.peers.tgm_pairs", "TgmTPNet"),)
SAMPLERS = (
    Peer("torch_geometric", "benchmarks.peers.pyg_sampler", "PygSampler"),
    Peer("tgm-lib", "benchmarks.peers.tgm_sampler", "TgmSampler"),
)


def load(peer: Peer, *args: Any) -> Any:
    """Return the peer's adapter built from `args`, or a string with the reason for skipping it."""
    try:
        version(peer.library)
        adapter = getattr(import_module(peer.module), peer.adapter)
    except PackageNotFoundError:
        return peer.not_installed
    except ModuleNotFoundError as error:
        return f"{peer.not_installed} ({error})"
    return adapter(*args)


def load_all(peers: Iterable[Peer], *args: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Return adapters by library, and the reasons for skipping others."""
    loaded = {peer.library: load(peer, *args) for peer in peers}
    return (
        {library: found for library, found in loaded.items() if not isinstance(found, str)},
        {library: reason for library, reason in loaded.items() if isinstance(reason, str)},
    )
