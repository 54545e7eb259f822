"""Generated training streams: small, seeded, and learnable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tgflow.graph.events import EventBatch
from tgflow.models.counts import SmoothedCounts
from tgflow.models.tgat import TGAT, TGATConfig
from tgflow.models.tgn import TGN, TGNConfig

NUM_USERS = 12
NUM_ITEMS = 20


def made_events(size: int, *, x_dim: int = 2, noise: float = 0.2, seed: int = 0) -> EventBatch:
    """Events of users who mostly return to their own item, with ties in time.

    Sources are nodes 0 to 11, destinations 12 to 31.
    """
    g = torch.Generator().manual_seed(seed)
    src = torch.randint(NUM_USERS, (size,), generator=g)
    strays = torch.rand(size, generator=g) < noise
    item = torch.where(
        strays, torch.randint(NUM_ITEMS, (size,), generator=g), (src * 7) % NUM_ITEMS
    )
    t = 1_600_000_000 + torch.randint(0, 60, (size,), generator=g).cumsum(0)
    x = torch.randn(size, x_dim, generator=g) if x_dim else None
    return EventBatch(src, NUM_USERS + item, t, x)


def pieces(events: EventBatch, *sizes: int) -> Iterator[EventBatch]:
    """Cut `events` into batches of the given sizes, over and over."""
    start = 0
    while start < len(events):
        for size in sizes:
            yield events[start : start + size]
            start += size


def small_tgn(seed: int = 0, **changes: Any) -> TGN:
    """A TGN that trains in milliseconds, with dropout."""
    widths = {"memory_dim": 8, "time_dim": 4, "embedding_dim": 8, "neighbors": 3}
    settings: dict[str, Any] = {"edge_x_dim": 2, "dropout": 0.1, **widths}
    settings |= {"pair_features": (), **changes}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return TGN(TGNConfig(**settings))


def small_tgat(seed: int = 0, **changes: Any) -> TGAT:
    """A TGAT of two hops that trains in milliseconds, with dropout and uniform neighbors."""
    widths = {"edge_x_dim": 2, "time_dim": 4, "embedding_dim": 8, "neighbors": 3}
    settings: dict[str, Any] = {**widths, "pair_features": (), **changes}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return TGAT(TGATConfig(**settings))


def small_counts(seed: int = 0, **changes: Any) -> SmoothedCounts:
    """The count model, with the same parameters at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SmoothedCounts(**changes)
