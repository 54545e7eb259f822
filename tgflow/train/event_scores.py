"""Scores of the events of a micro-batch, before any of them is learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tgflow.batch import HostEvents
from tgflow.describe import described
from tgflow.metrics import ranks
from tgflow.tasks.labels import EventLabels
from tgflow.tasks.targets import NO_LABEL
from tgflow.train.calibration import Calibration


@described
@dataclass(frozen=True, slots=True, eq=False)
class EventScores:
    """The scores of the events of a micro-batch, on the host: NaN where none is known.

    A micro-batch whose scores were not finite, and which was skipped for that, has none at all.
    """

    logit: Tensor
    """Float `[B]`: as the model gave them; the higher, the likelier."""
    probability: Tensor
    """float64 `[B]`: of the event beside one negative of its kind, by all micro-batches before."""
    rank: Tensor
    """float64 `[B]`: among its negatives, 1 is best; ties take the middle."""
    anomaly: Tensor
    """float64 `[B]`: which percentage of the events before had higher logits; the oldest of them
    fade. NaN for the first ones."""
    model_position: int
    """Log position up to which the model had learned and stored events."""
    predicted_label: Tensor | None = None
    """int64 `[B]`: the likeliest label, of two classes 1 (above 0) or 0; `NO_LABEL` where that is a
    class that no label before had. None without a task that predicts labels."""
    label_probability: Tensor | None = None
    """float64 `[B]`: of two classes that the label is above 0, else that it is the predicted."""


OnEventScores = Callable[[HostEvents, EventScores], None]
"""Gets the events of a micro-batch, in dense ids, and their scores, before they are learned."""


class EventScorer:
    """Makes event scores of what was predicted; what logits stand for it finds out on the way."""

    def __init__(self, num_hist: int = 0, labels: EventLabels | None = None) -> None:
        self.calibration = Calibration()
        """By the micro-batches that were learned."""
        self.hear: OnEventScores = lambda events, scores: None
        """Called with each micro-batch before it is learned; for a runner to set."""
        self._num_hist = num_hist
        self._labels = labels if labels is not None and labels.are_predicted else None
        self._latest: tuple[Tensor, Tensor] | None = None

    @property
    def says_labels(self) -> bool:
        """Whether scores have what is predicted of labels."""
        return self._labels is not None

    def score(self, events: HostEvents, values: Mapping[str, Tensor] | None) -> EventScores | None:
        """Return the scores of a micro-batch, after `hear` was called with them."""
        num = len(events.eid)
        label, probability = torch.full((num,), NO_LABEL, dtype=torch.int64), _nan(num)
        if values is None:
            scores = EventScores(_nan(num), _nan(num), _nan(num), _nan(num), events.begin)
        elif not values:
            return None
        else:
            positive, negative = values["positive"], values["negative"]
            negative = negative[:, : negative.shape[1] - self._num_hist]
            self._latest = positive, negative
            logits = positive.double().numpy()
            scores = EventScores(
                logit=positive,
                probability=torch.from_numpy(self.calibration.probabilities(logits)),
                rank=ranks(positive, negative),
                anomaly=torch.from_numpy(self.calibration.anomalies(logits)),
                model_position=events.begin,
            )
            if self._labels is not None:
                label, probability = self._labels.said(events, values["classes"])
        if self._labels is not None:
            scores = replace(scores, predicted_label=label, label_probability=probability)
        self.hear(events, scores)
        return scores

    def settle(self) -> None:
        """Take in the scores of the latest micro-batch, which is learned and stored now."""
        if self._latest is not None:
            positive, negative = (x.double().numpy() for x in self._latest)
            self.calibration.add(positive, negative)
            self._latest = None


def _nan(num: int) -> Tensor:
    return torch.full((num,), torch.nan, dtype=torch.float64)
