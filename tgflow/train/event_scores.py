"""Scores of the events of a micro-batch, before any of them is learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tgflow.base.describe import described
from tgflow.base.metrics import ranks
from tgflow.graph.batch import HostEvents
from tgflow.plan.negatives import chosen_events
from tgflow.train.alerts import AlertBudget
from tgflow.train.calibration import Calibration
from tgflow.train.tasks.labels import EventLabels


@described
@dataclass(frozen=True, slots=True, eq=False)
class EventScores:
    """The scores of the events of a micro-batch, on the host: NaN where unknown."""

    logit: Tensor
    """Float `[B]`: raw scores of the model; higher is likelier."""
    probability: Tensor
    """float64 `[B]`: of the event against one negative, calibrated on all earlier micro-batches."""
    rank: Tensor
    """float64 `[B]`: among its negatives, 1 is best; ties take the middle. NaN where it was not
    ranked, see `ContinualConfig.mrr_every`."""
    anomaly: Tensor
    """float64 `[B]`: percentage of earlier events with higher logits, the oldest of them decayed.
    NaN for the first ones."""
    model_position: int
    """Log position up to which the model had learned and stored events."""
    predicted_label: Tensor | None = None
    """int64 `[B]`: the likeliest label, of two classes 1 (positive), or else 0 or -1; `NO_LABEL`
    for a class that no earlier label had. None without a task that predicts labels."""
    label_probability: Tensor | None = None
    """float64 `[B]`: for two classes P(label > 0), else the probability of the predicted label."""
    label_probabilities: Tensor | None = None
    """float64 `[B, L]`: of each of `EventScorer.columns`; None without these."""
    alert: Tensor | None = None
    """bool `[B]`: whether the event is an alert; None without a budget of alerts."""


OnEventScores = Callable[[HostEvents, EventScores], None]
"""Called with the events of a micro-batch, in dense ids, and their scores, before learning."""


class EventScorer:
    """Computes event scores from predictions, and calibrates them online."""

    def __init__(
        self, labels: EventLabels | None = None, num_further: int = 0, every: int = 1
    ) -> None:
        self.calibration = Calibration()
        """Calibration by the micro-batches learned so far."""
        self.on_scores: OnEventScores = lambda events, scores: None
        """Called with each micro-batch before it is learned; set by a runner."""
        self.columns: Sequence[int] = ()
        """Labels of more than two whose probabilities scores include; set by a runner."""
        self.alerts: AlertBudget | None = None
        """Chooses alerts by `label_probability`; set by a runner."""
        self._num_further, self._every = num_further, every
        self._labels = labels if labels is not None and labels.are_predicted else None
        self._latest: tuple[Tensor, Tensor] | None = None

    @property
    def label_columns(self) -> list[str]:
        """The fields of scores about labels; none if labels are not predicted."""
        if self._labels is None:
            return []
        return ["predicted_label", "label_probability"] + ["alert"] * (self.alerts is not None)

    def score(
        self, events: HostEvents, values: Mapping[str, Tensor], rank: Tensor | None = None
    ) -> EventScores | None:
        """Return the scores of a micro-batch, after `on_scores` was called with them.

        Args:
            events: The micro-batch.
            values: Its logits by name; none on a rank that does not receive them.
            rank: Its ranks, float64 `[B]`; None: those of `values`.
        """
        if not values:
            return None
        positive, negative = values["positive"], values["negative"]
        negative = negative[:, : negative.shape[1] - self._num_further]
        mask = events.negative_mask
        if rank is None:
            rank = ranks(positive, negative)
            if mask is not None:
                rank = rank.where(chosen_events(events.begin, events.end, self._every), torch.nan)
        if mask is not None:
            negative = negative[:, :1]
        self._latest = positive, negative
        logits = positive.double().numpy()
        scores = EventScores(
            logit=positive,
            probability=torch.from_numpy(self.calibration.probabilities(logits)),
            rank=rank,
            anomaly=torch.from_numpy(self.calibration.anomalies(logits)),
            model_position=events.begin,
        )
        if self._labels is not None:
            label, probability = self._labels.said(events.t, events.eid, values["classes"])
            alert = None if self.alerts is None else self.alerts.add(events, probability)
            scores = replace(
                scores, predicted_label=label, label_probability=probability, alert=alert
            )
            if self.columns:
                shares = self._labels.shares(events.t, events.eid, values["classes"], self.columns)
                scores = replace(scores, label_probabilities=shares)
        self.on_scores(events, scores)
        return scores

    def calibrate(self) -> None:
        """Add the scores of the latest micro-batch, now learned and stored, to the calibration."""
        if self._latest is not None:
            positive, negative = (x.double().numpy() for x in self._latest)
            self.calibration.add(positive, negative)
            self._latest = None
