"""Other libraries as contenders: small adapters over their public classes, each optional."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple, cast

from tgflow.bench.race import Contender, Task

NOT_INSTALLED = "not installed: pip install 'tgflow[bench]'"


class Peer(NamedTuple):
    """A model of another library."""

    library: str
    """The name it is installed under."""
    module: str
    adapter: str


TGN = (
    Peer("torch_geometric", "tgflow.bench.peers.pyg", "PygTgn"),
    Peer("tgm-lib", "tgflow.bench.peers.tgm", "TgmTgn"),
)
TGAT = (Peer("tgm-lib", "tgflow.bench.peers.tgm", "TgmTgat"),)


def load(peer: Peer, task: Task) -> Contender | str:
    """Return the peer, ready to train on `task`, or why it cannot take part."""
    try:
        version(peer.library)
        adapter = getattr(import_module(peer.module), peer.adapter)
    except PackageNotFoundError:
        return NOT_INSTALLED
    except ModuleNotFoundError as error:
        return f"{NOT_INSTALLED} ({error})"
    return cast(Contender, adapter(task))
