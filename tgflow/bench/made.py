"""The streams that benchmarks run on: a real one where its file is given, else one like it."""

from __future__ import annotations

from pathlib import Path

import torch
from pyarrow import csv
from torch import Tensor

from tgflow.events import EventBatch


def wikipedia(data: Path | None = None) -> EventBatch:
    """Return the Wikipedia edit stream (Kumar et al., KDD 2019), or a seeded stream of its shape.

    Args:
        data: `wikipedia.csv(.gz)` with columns src, dst, t, sorted by t; None for the made one:
            157,474 edits of 1,000 pages by 8,227 users who keep returning to the same page.
    """
    if data is not None:
        table = csv.read_csv(data)
        src, dst, t = (torch.from_numpy(table[c].to_numpy().copy()) for c in ("src", "dst", "t"))
        return EventBatch(src, dst, t)
    generator = torch.Generator().manual_seed(2019)
    size, users, pages = 157_474, 8_227, 1_000
    src = skewed(users, size, generator, power=3)
    favourite = skewed(pages, users, generator, power=2)
    other = skewed(pages, size, generator, power=2)
    stays = torch.rand(size, generator=generator) < 0.8
    t = torch.randint(0, 35, (size,), generator=generator).cumsum(0)
    return EventBatch(src, users + torch.where(stays, favourite[src], other), t)


def power_law(num_events: int, num_nodes: int, seed: int = 0) -> EventBatch:
    """Return events whose ends follow a power law: a few hubs, a long tail, ids in no order."""
    generator = torch.Generator().manual_seed(seed)
    name = torch.randperm(num_nodes, generator=generator)
    src = name[skewed(num_nodes, num_events, generator, power=4)]
    dst = name[skewed(num_nodes, num_events, generator, power=4)]
    return EventBatch(src, dst, torch.arange(num_events))


def skewed(bound: int, size: int, generator: torch.Generator, power: float) -> Tensor:
    """Return `size` numbers below `bound`, density falling as x^(1/power - 1)."""
    u = torch.rand(size, dtype=torch.float64, generator=generator)
    return (bound * u**power).long().clamp(max=bound - 1)
