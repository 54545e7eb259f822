"""Plans whose batches reuse rows, and what came of each batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tgflow.batch import Batch
from tgflow.plan import Loader, Plan
from tgflow.plan.reuse import BatchReuse, HopReuse, ReuseProgress, ReuseRule, ReusingPlan, Walk

NO_ROWS = (torch.empty(0, dtype=torch.int64),) * 4


def reusing(
    plan: Plan, staleness: int = 4, refresh: float = 0.3, capacity: int = 100_000, **how: Any
) -> ReusingPlan:
    """The plan, with rows reused at all hops below the first."""
    rule, pads = ReuseRule(staleness, refresh), how.get("pads", False)
    progress = how.get("progress", ReuseProgress())
    hops = [
        HopReuse(plan, hop, rule, capacity, pads, progress, NO_ROWS)
        for hop in range(1, len(plan.fanouts))
    ]
    return ReusingPlan(plan, hops)


def tasks_of(
    source: ReusingPlan, num_threads: int = 0, epoch: int = 0
) -> Iterator[tuple[int, int, BatchReuse]]:
    """All tasks of an epoch, decided."""
    return source.tasks(((epoch, index) for index in range(len(source))), num_threads)


def batches_of(source: ReusingPlan, num_threads: int = 0, **loader: Any) -> Iterator[Batch]:
    """All batches of an epoch."""
    tasks = tasks_of(source, num_threads)
    return iter(Loader.of_tasks(source, tasks, num_threads=num_threads, **loader))


def asked_of(plan: Plan, index: int, epoch: int = 0) -> list[tuple[int, int]]:
    """The (node, time) of each row that the second hop of a batch asks about."""
    asked = Walk(plan, epoch, index).asked
    return list(zip(asked.nodes.tolist(), asked.t.tolist(), strict=True))
