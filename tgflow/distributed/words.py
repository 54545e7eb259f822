"""What rank 0 says to all others once, as text: plain values, and never code."""

from __future__ import annotations

import json
from typing import Any

import torch

from tgflow.peers import Peers

_KIND = "words"


def share_words(peers: Peers, value: Any = None) -> Any:
    """Return on all ranks what rank 0 gives: plain values that JSON holds; waits for it.

    Args:
        peers: The ranks; all of them call this together.
        value: Read on rank 0.

    Raises:
        PeerLost: If another rank is gone.
    """
    text = bytearray(json.dumps(value).encode() if peers.rank == 0 else b"")
    size = torch.tensor([len(text)])
    peers.broadcast(size, kind=_KIND)
    words = (
        torch.frombuffer(text, dtype=torch.uint8)
        if peers.rank == 0
        else torch.zeros(int(size), dtype=torch.uint8)
    )
    peers.broadcast(words, kind=_KIND)
    return json.loads(bytes(words.numpy()))
