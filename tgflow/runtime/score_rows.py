"""Rows of scores as people have them: by a stream's own ids, and times in its own unit."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from torch import Tensor

from tgflow.batch import HostEvents
from tgflow.ids import NodeIds
from tgflow.train.event_scores import EventScores
from tgflow.units import ticks_per_unit

EventIds = Callable[[int, int], pa.Array]
"""Returns the ids of the events from one log position to another, as text."""


class ScoreRows:
    """Turns the scores of micro-batches into rows.

    Args:
        ids: Of the stream's nodes.
        tick: What a tick of the stream is.
        unit: What times are to be in.
        event_ids: Of the stream's events, if they have any.
    """

    def __init__(
        self, ids: NodeIds, tick: str, unit: str, event_ids: EventIds | None = None
    ) -> None:
        self._ids, self._event_ids = ids, event_ids
        known = "tick" not in (tick, unit)
        self._per_unit = ticks_per_unit(unit, tick) if known else ticks_per_unit(tick, tick)

    def of(self, events: HostEvents, scores: EventScores) -> pa.RecordBatch:
        """Return a row for each event of a micro-batch: null where nothing is known."""
        columns = {
            "position": _array(events.eid),
            "src": pa.array(self._ids.decode(events.src)),
            "dst": pa.array(self._ids.decode(events.dst)),
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
        return pa.RecordBatch.from_pydict(columns)

    def _times(self, ticks: Tensor) -> pa.Array:
        """Return times as whole numbers, or with decimals where ticks are finer than the unit."""
        if self._per_unit.denominator == 1 and self._per_unit > 1:
            return pa.array(ticks.numpy() / int(self._per_unit))
        return pa.array(ticks.numpy() * self._per_unit.denominator)


def _array(column: Tensor) -> pa.Array:
    return pa.array(column.numpy(), from_pandas=True)
