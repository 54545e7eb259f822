"""Rows of scores as people have them: by a stream's own ids, and times in its own unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from torch import Tensor

from tgflow._id_columns import list_array
from tgflow.batch import HostEvents
from tgflow.config import Config
from tgflow.ids import NodeIds
from tgflow.runtime.ingestion import keeps_event_ids
from tgflow.streams.ingest.ingest import Ingest
from tgflow.train.event_scores import EventScores
from tgflow.train.learning_task import NO_LABEL
from tgflow.units import ticks_per_unit

EventIds = Callable[[int, int], pa.Array]
"""Returns the ids of the events from one log position to another, as text."""
LabelNames = Callable[[], Sequence[str] | None]
"""Returns what labels 0, 1, ... are called, if they have names."""


class ScoreRows:
    """Turns the scores of micro-batches into rows.

    Args:
        ids: Of the stream's nodes.
        tick: What a tick of the stream is.
        unit: What times are to be in.
        event_ids: Of the stream's events, if they have any.
        label_names: Of the stream's labels, if rows are to have them.
    """

    def __init__(
        self,
        ids: NodeIds,
        tick: str,
        unit: str,
        event_ids: EventIds | None = None,
        label_names: LabelNames | None = None,
    ) -> None:
        self._ids, self._event_ids, self._label_names = ids, event_ids, label_names
        known = "tick" not in (tick, unit)
        self._per_unit = ticks_per_unit(unit, tick) if known else ticks_per_unit(tick, tick)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        event_id = [] if self._event_ids is None else ["event_id"]
        labels = [] if self._label_names is None else ["predicted_label", "label_probability"]
        said = ["logit", "probability", "rank", "anomaly", "model_position"]
        return ["position", "src", "dst", "t", *event_id, *said, *labels]

    def of(self, events: HostEvents, scores: EventScores) -> pa.RecordBatch:
        """Return a row for each event of a micro-batch: null where nothing is known."""
        columns = {
            "position": _array(events.eid),
            "src": list_array(self._ids.decode(events.src)),
            "dst": list_array(self._ids.decode(events.dst)),
            "t": self._times(events.t),
        }
        if self._event_ids is not None:
            columns["event_id"] = self._event_ids(events.begin, events.end)
        columns |= {
            name: _array(getattr(scores, name).double())
            for name in ("logit", "probability", "rank", "anomaly")
        }
        position = pa.scalar(scores.model_position, pa.int64())
        columns["model_position"] = pa.repeat(position, len(events.eid))
        if scores.predicted_label is not None and scores.label_probability is not None:
            columns["predicted_label"] = self._labels(scores.predicted_label)
            columns["label_probability"] = _array(scores.label_probability)
        assert [*columns] == self.columns
        return pa.RecordBatch.from_pydict(columns)

    def _labels(self, label: Tensor) -> pa.Array:
        """Return labels as the stream has them; null for none."""
        names = None if self._label_names is None else self._label_names()
        if names is None:
            return pa.array(label.numpy(), mask=(label == NO_LABEL).numpy())
        texts = [None if each == NO_LABEL else names[each] for each in label.tolist()]
        return pa.array(texts, pa.string())

    def _times(self, ticks: Tensor) -> pa.Array:
        """Return times as whole numbers, or with decimals where ticks are finer than the unit."""
        if self._per_unit.denominator == 1 and self._per_unit > 1:
            return pa.array(ticks.numpy() / int(self._per_unit))
        return pa.array(ticks.numpy() * self._per_unit.denominator)


def rows_of(config: Config, ingest: Ingest, *, says_labels: bool) -> ScoreRows:
    """Return what makes the rows of a run.

    Labels of two classes have no names: a class may stand for several labels.

    Args:
        config: The settings.
        ingest: What hands events on.
        says_labels: Whether labels are predicted.
    """

    def names() -> Sequence[str] | None:
        return None if config.task.classes in (None, 2) else ingest.label_classes

    event_ids = ingest.event_ids if keeps_event_ids(config) else None
    return ScoreRows(
        ingest.ids, ingest.unit, config.stream.unit, event_ids, names if says_labels else None
    )


def _array(column: Tensor) -> pa.Array:
    return pa.array(column.numpy(), from_pandas=True)
