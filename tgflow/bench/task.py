"""The task of the training bench, and what becomes of a model that trains on it turn by turn."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

import torch
from torch import Tensor

from tgflow.events import EventBatch
from tgflow.metrics import average_precision


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Link prediction on a bipartite stream in seconds: train on a prefix, score the rest.

    Destinations are numbered after all sources, so that random negatives come from one range.
    """

    events: EventBatch
    train_stop: int
    """The log position where training ends and the held-out events begin."""
    seed: int = 0
    batch_size: int = 200
    dim: int = 100
    """Width of memory, embedding and time encoding."""
    neighbors: int = 10
    """Most recent neighbors per node and hop."""
    heads: int = 2
    dropout: float = 0.1
    lr: float = 1e-4

    @property
    def num_nodes(self) -> int:
        """Sources and destinations."""
        return int(self.events.dst.max()) + 1

    @property
    def num_batches(self) -> int:
        """Training batches, a last partial one included."""
        return -(-self.train_stop // self.batch_size)


class Contender(Protocol):
    """A model with its optimizer and loader, at the start of a task."""

    def train(self, num_batches: int) -> list[float]:
        """Train on the next batches of the task, in order.

        Returns:
            Each batch's mean cross-entropy of positives plus that of negatives.
        """

    def evaluate(self) -> tuple[Tensor, Tensor]:
        """Return logits of the held-out events, and of one random negative of each."""


@dataclass(slots=True)
class Laps:
    """What became of one contender."""

    contender: Contender
    batches: int
    """Batches that it trains when it is its turn."""
    batch_size: int
    turns: list[float] = field(default_factory=list)
    """Events a second, by turn."""
    losses: list[float] = field(default_factory=list)
    """One figure a batch."""
    held_out_ap: float = float("nan")
    """Average precision of the held-out events, once they are scored."""

    def run(self) -> None:
        """Take a turn."""
        start = time.perf_counter()
        losses = self.contender.train(self.batches)
        elapsed = time.perf_counter() - start
        self.losses += losses
        if losses:
            self.turns.append(len(losses) * self.batch_size / elapsed)

    def evaluate(self) -> None:
        """Score the held-out events."""
        self.held_out_ap = average_precision(*self.contender.evaluate())

    @property
    def median(self) -> float:
        """The median turn, in events/s; the first warms up and counts only where it is alone."""
        return median(self.turns[1:] or self.turns)

    def curve(self, points: int) -> list[float]:
        """Return the mean losses of `points` equal stretches of the batches."""
        parts = torch.tensor(self.losses, dtype=torch.float64).tensor_split(points)
        return [float(part.mean()) for part in parts]
