"""Recurrency baseline: History repeats itself, IJCAI 2024, arXiv:2404.16726.

Gastinger, Meilicke, Errica, Sztyler, Schuelke, Stuckenschmidt.

The score of (s, r, o) at time step t is `alpha * psi + (1 - alpha) * xi`:

* `psi` = sum of 2^(lambda (k - t)) over the earlier steps k with (s, r, o), divided by the sum of
  the same over all earlier steps;
* `xi` = share of o in the earlier events of relation r.

Differs from the paper:
    * `psi` is divided by the sum over all past steps, also those before the first event, and lambda
      is above 0.
    * lambda and alpha of each relation are chosen together, by reciprocal ranks so far (see
      `Heuristic`); before a test, over validation. A relation without an event before gets those
      that are best over all.
    * Without relations, all events have one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from tgflow.base.describe import described
from tgflow.base.metrics import ranks
from tgflow.base.setting import Checked
from tgflow.graph.batch import Batch
from tgflow.graph.counts import Count
from tgflow.models.heuristic import Heuristic
from tgflow.nn.choice import Choice
from tgflow.nn.messages import Messages, NewEvents
from tgflow.nn.model import Embeddings, Scores, make_config

DECAYS = (0.001, 0.01, 0.1, 0.5, 1.0)
ALPHAS = (0.0, 0.1, 0.5, 0.9, 0.99, 0.999, 0.99999, 1.0)
"""Tried for each relation if none is given."""


@described
@dataclass(frozen=True, kw_only=True)
class RecurrencyConfig(Checked):
    """Settings of the recurrency baseline."""

    step: Annotated[float, Gt(0)] = 86_400.0
    """Seconds of a time step."""
    decay: Annotated[float, Gt(0)] | None = None
    """Lambda, per step; unset: the best one of 0.001 to 1 for each relation."""
    alpha: Annotated[float, Ge(0), Le(1)] | None = None
    """Weight of recurrence; unset: the best one of 0 to 1 for each relation."""


class Recurrency(Heuristic):
    """Decayed recurrence of (source, relation, destination), and the destination's share.

    Example:
        >>> tg.Recurrency(decay=0.1, alpha=0.999).candidates
        ((0.1, 0.999),)
    """

    config_type = RecurrencyConfig
    weights: Tensor

    def __init__(self, config: RecurrencyConfig | None = None, **settings: Any) -> None:
        c = make_config(RecurrencyConfig, config, settings)
        decays = DECAYS if c.decay is None else (c.decay,)
        alphas = ALPHAS if c.alpha is None else (c.alpha,)
        share = Count("dst_relation").num / Count("relation").num.maximum(1.0)
        recurrence = [
            Count("pair_relation", half_life=c.step / decay).decayed * (2.0**decay - 1)
            for decay in decays
        ]
        super().__init__([*itertools.product(decays, alphas)], [*recurrence, share])
        weights = torch.zeros(len(self.candidates), len(self.counts), dtype=torch.float64)
        for row, (decay, alpha) in enumerate(self.candidates):
            weights[row, decays.index(decay)], weights[row, -1] = alpha, 1 - alpha
        self.register_buffer("weights", weights, persistent=False)
        if len(self.candidates) > 1:
            self.state = _ChoiceByRelation(len(self.candidates))

    def forward(self, batch: Batch) -> Scores:
        assert batch.counts is not None
        weights = self.weights[:1]
        if isinstance(self.state, _ChoiceByRelation):
            weights = self.weights[self.state.of_batch(batch).to(self.weights.device)]
        found = (batch.counts.double() * weights.unsqueeze(1)).sum(2)
        return Scores(found[:, 0], found[:, 1:])

    def messages(self, batch: Batch, found: Scores | Embeddings) -> Messages | None:
        """Return the reciprocal ranks of new events by each candidate, and their relations."""
        if self.state is None or self.training or not batch.negative_dst.shape[1]:
            return None
        assert batch.counts is not None
        n, mask = batch.num_new, batch.negative_mask
        there = None if mask is None else mask[:n].to(batch.counts.device)
        worth = []
        for weights in self.weights:
            scores = batch.counts[:n].double() @ weights
            others = scores[:, 1:]
            others = others if there is None else others.where(there, -torch.inf)
            worth.append(ranks(scores[:, 0], others).reciprocal())
        device = batch.counts.device
        return Messages((torch.stack(worth, dim=1).to(device), _relations(batch)[:n].to(device)))

    def store(self, events: NewEvents, messages: Messages) -> None:
        if isinstance(self.state, _ChoiceByRelation) and len(events):
            worth, relation = (column.cpu() for column in messages.columns)
            self.state.add_by_relation(worth, relation, events.end)

    def figures(self) -> dict[str, Any]:
        """Return the best `decay` and `alpha` over all relations."""
        decay, alpha = super().figures()["rule"]
        return {"decay": decay, "alpha": alpha}


class _ChoiceByRelation(Choice):
    """A choice over all events, and one for each relation that has had events."""

    def reset(self) -> None:
        super().reset()
        self.by_relation: dict[int, Choice] = {}

    def add_by_relation(self, worth: Tensor, relation: Tensor, position: int) -> None:
        if self._is_settled:
            return
        self.add(worth.sum(0), position)
        for each in torch.unique(relation).tolist():
            own = self.by_relation.setdefault(each, Choice(self.num))
            own.add(worth[relation == each].sum(0), position)

    def of_batch(self, batch: Batch) -> Tensor:
        leads = super().of_batch(batch).expand(len(batch)).clone()
        relation = _relations(batch)
        for each in torch.unique(relation).tolist():
            if (own := self.by_relation.get(each)) is not None:
                rows = relation == each
                leads[rows] = Choice.of_batch(own, batch).expand(len(batch))[rows]
        return leads

    def state_dict(self) -> dict[str, Tensor]:
        own = {
            f"{relation}.{name}": value
            for relation, choice in self.by_relation.items()
            for name, value in choice.state_dict().items()
        }
        return super().state_dict() | own

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.reset()
        super().load_state_dict(state)
        of: dict[int, dict[str, Tensor]] = {}
        for key, value in state.items():
            relation, dot, name = key.partition(".")
            if dot:
                of.setdefault(int(relation), {})[name] = value
        for each, values in of.items():
            self.by_relation[each] = Choice(self.num)
            self.by_relation[each].load_state_dict(values)


def _relations(batch: Batch) -> Tensor:
    """Return the relation of each event on the host, int64 `[B]`: 0 without."""
    relation = batch.host.relation
    return torch.zeros(len(batch), dtype=torch.int64) if relation is None else relation
