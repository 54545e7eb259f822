"""Vectors of one dtype, sent to each rank: what asking owners is made of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tgflow.peers import Group, Peers


def exchange_vectors(
    peers: Peers, sends: Sequence[Tensor], sizes: Sequence[int], *, kind: str, group: Group = "plan"
) -> list[Tensor]:
    """Send each rank a vector, and return those that come.

    Args:
        peers: The ranks.
        sends: To each rank, contiguous, of one dtype and device.
        sizes: Elements of what comes from each rank; they must be right.
        kind: What it is counted as in `Traffic`.
        group: Whose order it is part of.

    Raises:
        PeerLost: If another rank is gone.
    """
    receives = [sends[0].new_empty(size) for size in sizes]
    peers.exchange(
        [each.view(torch.uint8) for each in sends],
        [each.view(torch.uint8) for each in receives],
        kind=kind,
        group=group,
    )
    return receives
