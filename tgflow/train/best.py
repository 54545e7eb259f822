"""Which epoch is the best one so far."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tgflow.peers import Peers
from tgflow.train.offline_progress import BestEpoch


def is_better(select: str, found: Mapping[str, float], best: Mapping[str, float]) -> bool:
    """Return whether an epoch's validation is better than the best one's.

    Args:
        select: `ap` or `mrr`: higher than the best. `ap+auc`: both at least as high, as in DyGLib,
            where an epoch that gains in one and loses in the other counts as no better.
        found: Metrics of the epoch.
        best: Metrics of the best epoch.
    """
    if select == "ap+auc":
        return found["ap"] >= best["ap"] and found["auc"] >= best["auc"]
    return found[select] > best[select]


def chosen_epoch(
    peers: Peers, select: str, epoch: int, val: Mapping[str, float], best: BestEpoch | None
) -> int:
    """Return the best epoch so far, as rank 0 finds it.

    Args:
        peers: All of them call this together.
        select: As `is_better`.
        epoch: The latest one.
        val: Its metrics; of rank 0 alone.
        best: The best one before it; None without any.
    """
    leads = peers.rank == 0
    keeps = best is not None and not (leads and is_better(select, val, best.val))
    chosen = torch.tensor(best.epoch if best is not None and keeps else epoch)
    peers.broadcast(chosen, kind="epoch")
    return int(chosen)
