"""Which epoch is the best one so far."""

from __future__ import annotations

from collections.abc import Mapping


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
