"""The streams that benchmarks run on: real ones where their files are given, else seeded ones."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from pyarrow import csv
from torch import Tensor

from tgflow.events import EventBatch


def name_of(path: Path) -> str:
    """Return what a file's stream is called: its name up to the first dot."""
    return path.name.split(".")[0]


def read(path: Path) -> EventBatch:
    """Return the events of a CSV file with columns src, dst, t, sorted by t; it may be gzipped."""
    table = csv.read_csv(path)
    src, dst, t = (torch.from_numpy(table[c].to_numpy().copy()) for c in ("src", "dst", "t"))
    return EventBatch(src, dst, t)


def wikipedia() -> EventBatch:
    """Return a seeded stream in the shape of the Wikipedia edits (Kumar et al., KDD 2019).

    157,474 edits of 1,000 pages by 8,227 users who keep returning to the same page.
    """
    generator = torch.Generator().manual_seed(2019)
    size, users, pages = 157_474, 8_227, 1_000
    src = skewed(users, size, generator)
    favorite = skewed(pages, users, generator)
    other = skewed(pages, size, generator)
    stays = torch.rand(size, generator=generator) < 0.8
    t = torch.randint(0, 35, (size,), generator=generator).cumsum(0)
    return EventBatch(src, users + torch.where(stays, favorite[src], other), t)


class PowerLaw:
    """An endless seeded stream whose ends follow a power law: a few hubs, a long tail.

    Node ids are in no order, and event `i` has time `i`. Any part can be read, in any pieces.
    """

    CHUNK = 1 << 19

    def __init__(self, num_nodes: int, seed: int = 0) -> None:
        self.num_nodes, self.seed = num_nodes, seed
        self._name = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(seed))
        self._chunk = functools.lru_cache(maxsize=2)(self._make)

    def read(self, start: int, stop: int) -> EventBatch:
        """Return the events at positions `[start, stop)`."""
        ends = [
            self._chunk(i)[:, max(start - i * self.CHUNK, 0) : stop - i * self.CHUNK]
            for i in range(start // self.CHUNK, -(-stop // self.CHUNK))
        ]
        src, dst = torch.cat(ends, dim=1) if ends else torch.empty(2, 0, dtype=torch.int64)
        return EventBatch(src, dst, torch.arange(start, stop))

    def _make(self, index: int) -> Tensor:
        generator = torch.Generator().manual_seed((self.seed << 32) + index)
        return self._name[skewed(self.num_nodes, 2 * self.CHUNK, generator)].view(2, self.CHUNK)


def skewed(bound: int, size: int, generator: torch.Generator) -> Tensor:
    """Return `size` numbers below `bound`, density falling as x^(-3/4)."""
    u = torch.rand(size, dtype=torch.float64, generator=generator)
    return (u.square_().square_() * bound).long().clamp_(max=bound - 1)
