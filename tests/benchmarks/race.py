"""Measures several methods in turns, so that a noisy machine affects all of them."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks import peers
from benchmarks.options import TURN, Options, seconds_of
from benchmarks.own import Own, Task
from benchmarks.peers import Peer
from benchmarks.results import Params, Row
from tgflow.base.choices import Visibility
from tgflow.base.metrics import average_precision

OWN = "tgflow"
VISIBILITIES: Sequence[Visibility] = ("batch", "event")
"""Of tgflow, which is compared with a peer at "batch"."""


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
    library: str = OWN
    visibility: Visibility = "batch"
    """Of its neighborhoods."""
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
    def params(self) -> Params:
        """Parameters of its rows."""
        return {"library": self.library, "visibility": self.visibility}

    @property
    def median(self) -> float:
        """The median turn in events per second, without the first one, which warms up."""
        return median(self.turns[1:] or self.turns)


def race(laps: Sequence[Laps], num_batches: int, options: Options) -> None:
    """Alternate the contenders until those with most batches a turn have seen `num_batches`.

    Args:
        laps: Contenders.
        num_batches: Batches of the task.
        options: Their progress callback is called after every turn.
    """
    for _ in range(-(-num_batches // max(each.batches for each in laps))):
        for each in laps:
            each.run()
            recent = each.losses[-each.batches :]
            loss = sum(recent) / max(len(recent), 1)
            name = f"{each.library} ({each.visibility})"
            options.say(f"train: {name}, batch {len(each.losses):,}, loss {loss:.4f}")


def contenders(
    make: Callable[[Task], Own], task: Task, peer: Peer, turn: int, own_turn: int = TURN
) -> tuple[list[Laps], list[Params]]:
    """Return tgflow at each visibility with a peer, and the parameters of a skipped peer's row.

    Args:
        make: Returns a tgflow model on a task.
        task: The task.
        peer: Peer, whose neighborhoods are those of the batch's start.
        turn: Batches of the peer's turn.
        own_turn: Batches of tgflow's turn.
    """
    size = task.batch_size
    laps = [
        Laps(make(replace(task, visibility=visibility)), own_turn, size, OWN, visibility)
        for visibility in VISIBILITIES
    ]
    found = peers.load(peer, task)
    laps.append(Laps(found, turn, size, peer.library))
    return laps, [laps.pop().params | {"skipped": found}] if isinstance(found, str) else []


def speed_rows(
    name: str, laps: Sequence[Laps], absent: Sequence[Params], params: Params
) -> list[Row]:
    """Return a row per contender, including skipped ones."""
    rows = [Row(name, each.median, "events/s", params | each.params) for each in laps]
    return rows + [Row(name, math.nan, "events/s", params | each) for each in absent]


def rows_beside(
    name: str, laps: Sequence[Laps], params: Params, target: float | None = None
) -> list[Row]:
    """Return a row per peer: tgflow's speed at the peer's visibility, with the peer's as baseline.

    `target` is that of their ratio.
    """
    own = {each.visibility: each.median for each in laps if each.library == OWN}
    return [
        Row(
            f"{name}, beside a peer",
            own[each.visibility],
            "events/s",
            params | each.params,
            baseline=each.median,
            target_ratio=target,
        )
        for each in laps
        if each.library != OWN
    ]


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
