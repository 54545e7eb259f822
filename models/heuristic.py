"""Base class of heuristic baselines, with online selection among candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from tgflow.batch import Batch
from tgflow.counts import Count, Counts
from tgflow.messages import Messages, NewEvents
from tgflow.model import Embeddings, Scores, TemporalModel
from tgflow.nn.choice import Choice, average_precisions, one_thread

PairDirection = Literal["forward", "both"]
"""Direction of a pair's events: only its own, or either."""
NEVER = -(2.0**65)
"""The score of a pair without history, where others have scores below 0."""


class Heuristic(TemporalModel):
    """Scores pairs by a rule: the only one, or the best of several so far."""

    strategy = "recent"
    fanouts = ()
    reads_nodes = False
    state: Choice | None

    def __init__(self, candidates: Sequence[Any], counts: Sequence[Count]) -> None:
        super().__init__()
        self.candidates, self.counts = tuple(candidates), tuple(counts)
        self.state = Choice(len(self.candidates)) if len(self.candidates) > 1 else None
        never = torch.tensor(NEVER, dtype=torch.float64)
        self.register_buffer("never", never, persistent=False)  # tracks the model's device
        self.never: Tensor

    def rate(
        self, batch: Batch, counts: Sequence[Counts], candidates: Sequence[int]
    ) -> list[Tensor]:
        """Return the scores of pairs by each candidate, float64 of the shape of their counts."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> Scores:
        leads = torch.tensor([0]) if self.state is None else self.state.of_batch(batch)
        leading = sorted(set(leads.tolist()))
        with one_thread():
            found, *others = self.rate(batch, batch.counts, leading)
        for other, rated in zip(leading[1:], others, strict=True):
            # replayed events, when another candidate was the best
            is_other = (leads == other).to(found.device).unsqueeze(1)
            found = found.where(~is_other, rated)
        return Scores(found[:, 0], found[:, 1:])

    def messages(self, batch: Batch, found: Scores | Embeddings) -> Messages | None:
        """Return how each candidate scores the new events and a negative each; not in training."""
        if self.state is None or self.training or not batch.negative_dst.shape[1]:
            return None
        head = [_head(each, batch.num_new) for each in batch.counts]
        with one_thread():
            rated = torch.stack(self.rate(batch, head, range(len(self.candidates))))
        return Messages((rated.transpose(0, 1),))

    def store(self, events: NewEvents, messages: Messages) -> None:
        """Add how well each candidate has ranked the new events."""
        if self.state is None or len(events) == 0:
            return
        rated = messages.columns[0].transpose(0, 1).contiguous()
        self.state.add(average_precisions(rated[:, :, 0], rated[:, :, 1]), events.end)

    def settle(self) -> None:
        if self.state is not None:
            self.state.settle()

    def figures(self) -> dict[str, Any]:
        """Return the `rule` in use: the latest one."""
        return {"rule": self.candidates[0 if self.state is None else self.state.lead]}


def pair_counts(direction: PairDirection) -> list[Count]:
    return [Count("pair")] + [Count("reverse")] * (direction == "both")


def _head(counts: Counts, num: int) -> Counts:
    """Return the counts of the first events and of their first negatives."""
    return Counts(*(None if x is None else x[:num, :2] for x in counts))  # type: ignore[arg-type]


def latest_age(counts: Sequence[Counts]) -> Tensor:
    """Return the age of the latest event of all counts, -1 if there is none."""
    first, *others = [each.age for each in counts]
    for age in others:
        sooner = torch.minimum(first, age)
        first = torch.where(sooner < 0, torch.maximum(first, age), sooner)
    return first
