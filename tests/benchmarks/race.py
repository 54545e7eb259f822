"""Measures several methods in turns, so that a noisy machine affects all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks import peers
from benchmarks.peers import Peer
from benchmarks.results import skipped
from tgflow.bench.row import Params, Row
from tgflow.bench.setup import Options, seconds_of
from tgflow.bench.train import TURN
from tgflow.metrics import average_precision

OWN = "tgflow"


@dataclass(slots=True)
class Laps:
    """Speeds and losses of one contender."""

    contender: Any
    """A model of tgflow or a peer, at the start of a task: `train(num_batches)` returns the losses
    of the next batches, each the mean cross-entropy of positives plus that of negatives;
    `evaluate()` returns logits of the held-out events, and of one random negative of each."""
    batches: int
    """Batches of a turn."""
    batch_size: int
    turns: list[float] = field(default_factory=list)
    """Events per second of each turn."""
    losses: list[float] = field(default_factory=list)
    """The loss of each batch."""
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
        """The median turn in events per second, without the first one, which warms up."""
        return median(self.turns[1:] or self.turns)


def race(laps: Mapping[str, Laps], num_batches: int, options: Options) -> None:
    """Alternate the contenders until the one with most batches a turn has seen `num_batches`.

    Args:
        laps: Contenders by name.
        num_batches: Batches of the task.
        options: Their progress callback is called after every turn.
    """
    for _ in range(-(-num_batches // max(each.batches for each in laps.values()))):
        for name, each in laps.items():
            each.run()
            recent = each.losses[-each.batches :]
            loss = sum(recent) / max(len(recent), 1)
            options.say(f"train: {name}, batch {len(each.losses):,}, loss {loss:.4f}")


def contenders(
    own: Any, others: Sequence[Peer], turn: int, own_turn: int = TURN
) -> tuple[dict[str, Laps], dict[str, str]]:
    """Return tgflow and its peers, with `turn` batches a turn, and reasons for skipped ones."""
    size = own.task.batch_size
    present, absent = peers.load_all(others, own.task)
    laps = {library: Laps(peer, turn, size) for library, peer in present.items()}
    return {OWN: Laps(own, own_turn, size), **laps}, absent


def speed_rows(
    name: str,
    laps: dict[str, Laps],
    absent: dict[str, str],
    params: Params,
    target: float | None = None,
) -> list[Row]:
    """Return a row per library, including skipped ones."""
    rows = []
    for library, each in laps.items():
        named = params | {"library": library}
        rows.append(Row(name, each.median, "events/s", named, target if library == OWN else None))
    return rows + [
        skipped(name, "events/s", {"library": library}, reason)
        for library, reason in absent.items()
    ]


def times_rows(
    name: str, laps: dict[str, Laps], params: Params, target: float | None = None
) -> list[Row]:
    """Return the row of tgflow's speed relative to the fastest peer, if any."""
    others = [each.median for library, each in laps.items() if library != OWN]
    return [Row(name, laps[OWN].median / max(others), "x", params, target)] if others else []


def link_loss(positive: Tensor, negative: Tensor) -> Tensor:
    """Return the mean cross-entropy of the positives plus that of the negatives."""
    return F.binary_cross_entropy_with_logits(
        positive, torch.ones_like(positive)
    ) + F.binary_cross_entropy_with_logits(negative, torch.zeros_like(negative))


def take_turns(
    methods: Mapping[str, Callable[[int], object]],
    num_calls: int,
    rounds: int = 1,
    device: str = "cpu",
) -> dict[str, Tensor]:
    """Return seconds per call, float64 `[num_calls]`, the best of `rounds`.

    Args:
        methods: Called with the number of the call, in alternating order.
        num_calls: Calls a round.
        rounds: Repetitions of all calls.
        device: "cuda" synchronizes after every call.
    """
    seconds = {
        name: torch.full((num_calls,), torch.inf, dtype=torch.float64).tolist() for name in methods
    }
    order = list(methods.items())
    for _ in range(rounds):
        for i in range(num_calls):
            for name, call in order:
                seconds[name][i] = min(seconds[name][i], seconds_of(partial(call, i), device))
            order.reverse()
    return {name: torch.tensor(each, dtype=torch.float64) for name, each in seconds.items()}
