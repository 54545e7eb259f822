"""What trainers know of a task: labels are added to batches, descended with, and measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from tgflow.batch import Batch, HostEvents
from tgflow.graph import TemporalGraph
from tgflow.model import Scores, TemporalModel
from tgflow.units import INT64_MIN

NO_LABEL = INT64_MIN
"""In place of a label where none can be named."""


class TaskFigures(Protocol):
    """Measures what was predicted of labels, batch by batch."""

    def add(self, host: HostEvents, positive: Tensor, classes: Tensor | None) -> dict[str, float]:
        """Take in what was predicted of new events, and return what it comes to alone.

        Args:
            host: The events.
            positive: Their link logits on the host, float `[B]`.
            classes: The logits of their labels on the host, float `[B, num_classes]`, if there are.

        Returns:
            Means over the events, by name.
        """
        ...

    def result(self, *, with_baselines: bool) -> dict[str, float]:
        """Return the figures of all that was taken in, by name; none for what is undefined.

        Args:
            with_baselines: Add intervals, and the figures of rules without a model.
        """
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Return what `load_state_dict` takes back: of the same size however much was taken in."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Become what was saved.

        Raises:
            ValueError: If it is of other classes.
        """
        ...


class TaskLabels(Protocol):
    """The labels of a graph's events."""

    @property
    def are_predicted(self) -> bool:
        """Whether a model says them (`Scores.classes`), and not how odd an event is alone."""
        ...

    def attach(self, batch: Batch) -> Batch:
        """Return a batch of the graph with its `targets`."""
        ...

    def said(self, host: HostEvents, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Return which label is likeliest for each event, and how likely.

        Args:
            host: New events.
            classes: The logits of their labels on the host, float `[B, num_classes]`.

        Returns:
            int64 `[B]`: the label as events have it, of two classes 1 (above 0) or 0. A class that
            no label has had which may be seen at the event's time is `NO_LABEL`. And float64 `[B]`:
            the probability of the label, of two classes that it is 1.
        """
        ...

    def figures(self, *, pooled: bool) -> TaskFigures:
        """Return new figures of the graph's events.

        Args:
            pooled: Keep each score, for exact figures; otherwise memory is bounded.
        """
        ...

    def check_measurable(self, part: str, start: int, stop: int) -> None:
        """Raise ValueError if labels of the events at `[start, stop)` give no figure to choose by.

        Args:
            part: What the events are for, in words.
            start: Log position of the first.
            stop: Log position after the last.
        """
        ...


class LearningTask(Protocol):
    """What is asked of events beside whether they come."""

    @property
    def select(self) -> str | None:
        """The figure of validation by which the best epoch is chosen; None: by that of links."""
        ...

    def check(self, model: TemporalModel) -> None:
        """Raise ValueError if the model lacks what the task needs."""
        ...

    def labels_of(
        self, graph: TemporalGraph, like: Any = None, known_at: int | None = None
    ) -> TaskLabels:
        """Return the labels of a graph's events, also of those to come.

        Args:
            graph: Of the events.
            like: What this has returned of another graph, whose classes are the same.
            known_at: Tick before which a label must be known to be learned; None: before the last
                new event of its batch.
        """
        ...

    def loss(self, links: Tensor, scores: Scores, batch: Batch) -> Tensor:
        """Return what a step descends, float `[]`.

        Args:
            links: The loss of links, float `[]`.
            scores: Of the batch.
            batch: With its `targets`.
        """
        ...
