"""Base class of heuristic baselines, with online selection among candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from tgflow.base import _native
from tgflow.base.metrics import ranks
from tgflow.graph.batch import Batch
from tgflow.graph.counts import Count, Number, latest
from tgflow.nn.choice import Choice
from tgflow.nn.messages import Messages, NewEvents
from tgflow.nn.model import Embeddings, Scores, TemporalModel

PairDirection = Literal["forward", "both"]
"""Direction of a pair's events: only its own, or either."""


class Heuristic(TemporalModel):
    """Scores pairs by a rule: the only one, or the best of several so far, by `choose_by`.

    The best has the highest average precision against a negative each, summed over batches, or the
    highest mean reciprocal rank among all negatives.

    Args:
        candidates: The rules.
        counts: The scores of pairs by each.
    """

    strategy = "recent"
    fanouts = ()
    reads_nodes = False
    state: Choice | None

    def __init__(self, candidates: Sequence[Any], counts: Sequence[Number]) -> None:
        super().__init__()
        self.candidates, self.counts = tuple(candidates), tuple(counts)
        self.state = Choice(len(self.candidates)) if len(self.candidates) > 1 else None
        self.register_buffer("device", torch.empty(0), persistent=False)  # tracks the model's

    def forward(self, batch: Batch) -> Scores:
        counts = batch.counts
        assert counts is not None
        if self.state is None:
            found = counts[..., 0]
        elif len(leads := self.state.of_batch(batch)) == 1:
            found = counts[..., int(leads)]
        else:  # replayed events, when another candidate was the best
            which = leads.to(counts.device).view(-1, 1, 1).expand(-1, counts.shape[1], 1)
            found = counts.gather(2, which).squeeze(2)
        return Scores(found[:, 0], found[:, 1:])

    def messages(self, batch: Batch, found: Scores | Embeddings) -> Messages | None:
        """Return what `store` compares candidates by, for the new events; not in training.

        Scores of the events and a negative each; by MRR the events' reciprocal ranks, which
        synchronizes.
        """
        if self.state is None or self.training or not batch.negative_dst.shape[1]:
            return None
        assert batch.counts is not None
        counts, mask = batch.counts[: batch.num_new], batch.negative_mask
        if self.choose_by == "ap":
            return Messages((counts[:, :2].clone(),))
        own, others = counts[:, 0], counts[:, 1:]
        if mask is not None:
            there = mask[: batch.num_new, :, None].to(others.device)
            others = others.where(there, -torch.inf)
        places = [ranks(own[:, i], others[..., i]) for i in range(len(self.candidates))]
        return Messages((torch.stack(places, dim=1).reciprocal().to(counts.device),))

    def store(self, events: NewEvents, messages: Messages) -> None:
        """Add how well each candidate has ranked the new events."""
        if self.state is None or len(events) == 0:
            return
        [column] = messages.columns
        if self.choose_by == "ap":
            own, others = column.cpu().permute(1, 2, 0).contiguous()
            scored = zip(own, others, strict=True)
            merits = [_native.compare_scores(*each, 0.0)[0] for each in scored]
            self.state.add(torch.tensor(merits, dtype=torch.float64), events.end)
        else:
            self.state.add(column.sum(dim=0), events.end)

    def settle(self) -> None:
        if self.state is not None:
            self.state.settle()

    def figures(self) -> dict[str, Any]:
        """Return the `rule` in use: the latest one."""
        return {"rule": self.candidates[0 if self.state is None else self.state.lead]}


def pair_age(direction: PairDirection) -> Number:
    """Return the age of the latest event of a pair."""
    age = Count("pair").age
    return age if direction == "forward" else latest(age, Count("reverse").age)
