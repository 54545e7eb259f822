"""Other libraries as contenders: small adapters over their public classes, each optional."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple, cast

from tgflow.bench.race import Contender, Task

NOT_INSTALLED = "not installed: pip install 'tgflow[bench]'"


class Peer(NamedTuple):
    """A model of another library."""

    library: str
    module: str
    adapter: str
    requires: str
    """The top-level package that has to be there."""


TGN = (
    Peer("torch_geometric", "tgflow.bench.peers.pyg", "PygTgn", "torch_geometric"),
    Peer("tgm-lib", "tgflow.bench.peers.tgm", "TgmTgn", "tgm"),
)
TGAT = (Peer("tgm-lib", "tgflow.bench.peers.tgm", "TgmTgat", "tgm"),)


def load(peer: Peer, task: Task) -> Contender | str:
    """Return the peer, ready to train on `task`, or why it cannot take part."""
    try:
        import_module(peer.requires)
    except ModuleNotFoundError as error:
        return NOT_INSTALLED if error.name == peer.requires else f"{NOT_INSTALLED} ({error})"
    return cast(Contender, getattr(import_module(peer.module), peer.adapter)(task))
