"""Trains several libraries on one task in turns: a noisy machine is then noisy to all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

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
    """A library under test, with its model, optimizer and loader, at the start of a task."""

    def train(self, num_batches: int) -> list[float]:
        """Train on the next batches of the task, in order; returns their losses (`link_loss`)."""

    def evaluate(self) -> tuple[Tensor, Tensor]:
        """Return logits of the held-out events, and of one random negative of each."""


class Entrant(NamedTuple):
    """A contender, and how many batches it trains when it is its turn."""

    contender: Contender
    batches: int


@dataclass(slots=True)
class Laps:
    """What became of one contender."""

    events_per_second: list[float] = field(default_factory=list)
    """One figure a turn, but for those that warm up."""
    losses: list[float] = field(default_factory=list)
    """One figure a batch."""
    held_out_ap: float = float("nan")
    """Average precision after the last turn, if it was asked for."""

    @property
    def median(self) -> float:
        """The median turn, in events/s."""
        return median(self.events_per_second)

    def curve(self, points: int) -> list[float]:
        """Return the mean losses of `points` equal stretches of the batches."""
        parts = torch.tensor(self.losses, dtype=torch.float64).tensor_split(points)
        return [float(part.mean()) for part in parts]


def race(
    entries: Mapping[str, Entrant],
    task: Task,
    *,
    warm_up: int = 1,
    held_out: bool = False,
    on_turn: Callable[[str, Laps], None] | None = None,
) -> dict[str, Laps]:
    """Train all contenders in turns, until the one with most batches a turn has seen them all.

    Args:
        entries: Contenders by name.
        task: What they train on.
        warm_up: Turns at the start that count for the losses only, if there are more.
        held_out: Score the held-out events at the end.
        on_turn: Called with the contender's name and laps after every turn.
    """
    laps = {name: Laps() for name in entries}
    turns = -(-task.num_batches // max(entry.batches for entry in entries.values()))
    for turn in range(turns):
        for name, (contender, batches) in entries.items():
            start = time.perf_counter()
            losses = contender.train(batches)
            elapsed = time.perf_counter() - start
            laps[name].losses += losses
            if losses and (turn >= warm_up or turns <= warm_up):
                laps[name].events_per_second.append(len(losses) * task.batch_size / elapsed)
            if on_turn is not None:
                on_turn(name, laps[name])
    if held_out:
        for name, entry in entries.items():
            laps[name].held_out_ap = average_precision(*entry.contender.evaluate())
    return laps


def link_loss(positive: Tensor, negative: Tensor) -> Tensor:
    """Return the mean cross-entropy of the positives plus that of the negatives."""
    return F.binary_cross_entropy_with_logits(
        positive, torch.ones_like(positive)
    ) + F.binary_cross_entropy_with_logits(negative, torch.zeros_like(negative))
