"""What a task adds to offline training: labels of its batches, and figures of its parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tgflow.batch import AnyBatch
from tgflow.graph import TemporalGraph
from tgflow.model import TemporalModel
from tgflow.train.config import OfflineConfig
from tgflow.train.evaluate import HearScores, Scored
from tgflow.train.learning_task import LearningTask, TaskFigures, TaskLabels
from tgflow.train.split import Split


class OfflineLabels:
    """The labels of the training's graph, and those of the whole one, which is evaluated.

    Args:
        task: None: no labels, and nothing is done.
        graph: All events.
        training: Those of training alone, which have other positions there.
        split: Which events are for what.

    Raises:
        ValueError: If labels are missing, or the parts' give no figure to choose by.
    """

    def __init__(
        self, task: LearningTask | None, graph: TemporalGraph, training: TemporalGraph, split: Split
    ) -> None:
        self._of: dict[TemporalGraph, TaskLabels] = {}
        if task is not None:
            labels = task.labels_of(graph)
            if task.select is not None:
                labels.check_measurable("validation", split.val_start, split.test_start)
            labels.check_measurable("the test", split.test_start, graph.num_events)
            val_t = int(graph.log.read(split.val_start, split.val_start + 1).t)
            self._of = {training: task.labels_of(training, labels, val_t), graph: labels}

    def attached(self, graph: TemporalGraph, batches: Iterable[AnyBatch]) -> Iterable[AnyBatch]:
        """Return batches of one of the graphs with what the task wants of their labels."""
        labels: Any = self._of.get(graph)
        return batches if labels is None else map(labels.attach, batches)

    def figures(self, graph: TemporalGraph) -> TaskFigures | None:
        """Return new figures of one of the graphs; None without a task."""
        labels = self._of.get(graph)
        return None if labels is None else labels.figures(pooled=True)


def also_measured(figures: TaskFigures | None, hear: HearScores | None) -> HearScores | None:
    """Return what lets figures hear of each batch before `hear` does."""
    if figures is None:
        return hear

    def hear_both(scored: Scored) -> None:
        figures.add(scored.place.host, scored.positive, scored.classes)
        if hear is not None:
            hear(scored)

    return hear_both


def check_task(task: LearningTask | None, model: TemporalModel, config: OfflineConfig) -> None:
    """Raise ValueError if a model or settings do not fit a task."""
    if task is None:
        return
    task.check(model)
    for name, is_set in (
        ("slices", config.slices > 1),
        ("fixed_negatives", config.fixed_negatives is not None),
        ("reuse", config.reuse.staleness > 0),
    ):
        if is_set:
            raise ValueError(f"a task learns whole batches as they are: leave {name} out")
