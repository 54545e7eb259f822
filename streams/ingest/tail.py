"""Events that another process logs, read while it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tgflow.checkpoint.durable.log import read_written
from tgflow.graph.events import EventBatch, LateLabels
from tgflow.graph.ids import NodeIds
from tgflow.streams.ingest.ingest_state import NO_ROWS, IngestState, LabelRows
from tgflow.streams.ingest.ordering import ReorderBuffer, from_arrow
from tgflow.streams.rows.row_batch import EventColumns, to_batch
from tgflow.streams.rows.validate import saved_classes


class LogTail:
    """Events in the log of a run after one of its checkpoints; does not change the log.

    An iteration ends at the last complete frame, or at `limit`; a later one continues from there.
    Labels that come after their events are yielded with the next events, unless they wait for
    theirs: these labels are in the next checkpoint.

    Args:
        state: State of ingestion in the checkpoint, with a log position.
        ids: Ids of the checkpoint's events; those of later nodes are added.
        position: Number of the checkpoint's events.
    """

    def __init__(self, directory: Path, state: IngestState, ids: NodeIds, position: int) -> None:
        assert state.log is not None
        self.ids, self.classes = ids, state.classes
        """Texts of the relations and labels 0, 1, ... so far, by column."""
        self.limit = position
        """Number of events to read up to."""
        self._directory, self._place = directory, state.log
        self._position, self._num_released = position, state.num_released
        self._buffer = ReorderBuffer()
        self._rows: EventColumns | None = None
        """Released rows from the position on."""
        self._labels = NO_ROWS
        """Labels from the position on."""
        if (rows := state.held_rows()) is not None:
            self._buffer.add(rows.keeping_ids(False))

    def __iter__(self) -> Iterator[EventBatch | LateLabels]:
        """Yield the events and labels of the frames that have been added."""
        while self._position < self.limit and (rows := self._rows or self._released()) is not None:
            room = self.limit - self._position
            self._rows = rows.take(slice(room, None)) if len(rows) > room else None
            rows, first = rows.take(slice(room)), self._position
            self._position += len(rows)
            is_here = self._labels.at < self._position
            here, self._labels = self._labels.take(is_here), self._labels.take(~is_here)
            yield from here.among(to_batch(rows, self.ids), first)

    def _released(self) -> EventColumns | None:
        """Return rows that the next frames have released, from the position on."""
        for frame, footer, end in read_written(self._directory, self._place):
            self._place = end
            if footer["kind"] == "labels":
                labels = LabelRows.of(frame)
                new = labels.take((labels.at >= self._position) & (labels.eid >= 0))
                self._labels = LabelRows.joined([self._labels, new])
                continue
            if len(frame):
                self._buffer.add(from_arrow(frame).keeping_ids(False))
            for state in footer["partitions"].values():
                self.classes |= saved_classes(state["position"] or {})
            released = self._buffer.release(footer["released"])
            known, self._num_released = self._position - self._num_released, footer["num_released"]
            if released is not None and len(released) > known:
                return released.take(slice(known, None))
        return None
