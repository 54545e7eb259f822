"""Which neighborhoods later events leave as they are."""

from __future__ import annotations

import torch
from torch import Tensor

from tgflow.graph import EventLog


def find_settled(log: EventLog, t: Tensor, limit: Tensor | int) -> Tensor:
    """Return which queries see the same whatever is appended: the log has reached their times.

    Their neighborhoods, and all below them, are those of their nodes and times alone, until the
    past itself is changed (`TemporalGraph.last_change`) or an event comes late.

    Args:
        log: Log of the graph that is asked.
        t: Times of the queries in ticks, int64 `[N]`, on the CPU.
        limit: Log positions that they see events before, int64 `[N]`, or one for all.

    Returns:
        bool `[N]`.
    """
    if not len(log):
        return torch.zeros(len(t), dtype=torch.bool)
    if isinstance(limit, int):
        reached = log.gather(torch.tensor([max(limit - 1, 0)])).t
        return (t <= reached) if limit > 0 else torch.zeros(len(t), dtype=torch.bool)
    reached = log.gather((limit - 1).clamp_(min=0)).t
    return (t <= reached) & (limit > 0)
