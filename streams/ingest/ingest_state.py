"""Ingestion state between two polls, saved for resume."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from tgflow.checkpoint.durable.log import LogPosition
from tgflow.checkpoint.names import UntrustedCheckpoint
from tgflow.checkpoint.typed import read_as
from tgflow.graph.events import EventBatch, LateLabels
from tgflow.streams.ingest.config import BEFORE_ALL
from tgflow.streams.ingest.dead_letters import Length
from tgflow.streams.ingest.ordering import ReorderBuffer, from_arrow, merged, to_arrow
from tgflow.streams.rows.row_batch import EventColumns, Int64s, Position
from tgflow.streams.rows.validate import saved_classes

Counts = Mapping[str, Mapping[str, Any]]
"""By partition (text, as in JSON): rows `read`, `accepted` as events and dropped as `duplicate`;
how often the watermark was `forced` forward; `refused`, by code: the count of rows, the places of
the first and the last, three examples; `other` items, such as tombstones, by name; `gaps` that the
source skipped, `[begin, end)` in the source's numbering; and `recent_bad`, the numbers of the bad
rows among the last 10,000."""


class Seen(NamedTuple):
    """Event ids, and the row number where each first occurred, both int64."""

    seq: Int64s
    ids: Int64s


@dataclass(frozen=True, slots=True)
class DedupWindow:
    """A snapshot of the remembered ids: immutable, although it shares `pieces` with later ones."""

    pieces: list[Seen]
    stop: int
    first_seq: int

    def seen(self) -> Seen:
        """Return the ids, by increasing row number."""
        pieces = [Seen(np.empty(0, np.int64), np.empty(0, np.int64)), *self.pieces[: self.stop]]
        seq, ids = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
        recent = np.flatnonzero(seq >= self.first_seq)
        recent = recent[np.argsort(seq[recent], kind="stable")]
        return Seen(seq[recent], ids[recent])


@dataclass(frozen=True, slots=True)
class PartitionState:
    """State of a partition after some of its rows.

    The source resumes at `position` (None: the beginning); the next row has number `seq`; `max_t`
    is the latest event time; the watermark was forced forward to `floor`. An idle partition has
    exceeded the idle timeout and no longer delays the others.
    """

    position: Position | None = None
    seq: int = 0
    max_t: int = BEFORE_ALL
    floor: int = BEFORE_ALL
    is_idle: bool = False

    def watermark(self, allowed_lateness: int) -> int:
        """Return the partition's watermark: the minimum time of its next event."""
        return max(self.floor, self.max_t - allowed_lateness, BEFORE_ALL)


class LabelRows(NamedTuple):
    """Labels in the order in which they come, int64 `[N]` each."""

    at: Int64s
    """Number of events before each."""
    eid: Int64s
    """Log position of its event, -1 if that has not come yet."""
    key: Int64s
    label: Int64s
    t: Int64s
    """Ticks at which they came."""

    @property
    def size(self) -> int:
        """Number of labels."""
        return len(self.at)

    def take(self, rows: slice | Int64s | npt.NDArray[np.bool_]) -> LabelRows:
        """Return the labels at `rows`, in that order."""
        return LabelRows(*(column[rows] for column in self))

    def entries(self) -> LateLabels:
        """Return the labels, all of known events, for a log."""
        return LateLabels(*(torch.from_numpy(x.copy()) for x in (self.eid, self.label, self.t)))

    def among(self, batch: EventBatch, first: int) -> Iterator[EventBatch | LateLabels]:
        """Yield events from position `first` on, and the labels, all placed among them."""
        done = 0
        for at, start in zip(*np.unique(self.at, return_index=True), strict=True):
            if at - first > done:
                yield batch[done : at - first]
                done = int(at) - first
            stop = np.searchsorted(self.at, at, side="right")
            yield self.take(slice(start, stop)).entries()
        yield batch[done:] if done else batch

    @classmethod
    def joined(cls, parts: Sequence[LabelRows]) -> LabelRows:
        """Return parts as one, ordered by position; those at the same one stay in their order."""
        rows = cls(*(np.concatenate(columns) for columns in zip(NO_ROWS, *parts, strict=True)))
        return rows.take(np.argsort(rows.at, kind="stable"))

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> LabelRows:
        """Return the labels for the result of `to_arrow`."""
        return cls(*(batch[name].to_numpy() for name in cls._fields))

    def to_arrow(self) -> pa.RecordBatch:
        """Return a column for each field."""
        return pa.record_batch({name: pa.array(getattr(self, name)) for name in self._fields})


NO_ROWS = LabelRows(*(np.empty(0, np.int64) for _ in LabelRows._fields))


@dataclass(frozen=True, slots=True)
class IngestState:
    """Immutable state of `Ingest` after a poll. Shares memory with other states.

    Args:
        watermark: All events before this time have been released.
        last_t: Time of the last one.
        log: Log position after everything up to this state.
        labels: State of the reader of labels that come after their events, as JSON; None without.
        pending: Labels that wait for their events, or stand behind the last one.
    """

    num_released: int = 0
    watermark: int = BEFORE_ALL
    last_t: int = BEFORE_ALL
    partitions: Mapping[int, PartitionState] = field(default_factory=dict)
    held: tuple[EventColumns, ...] = ()
    windows: Mapping[int, DedupWindow] = field(default_factory=dict)
    counts: Counts = field(default_factory=dict)
    letters: Length | None = None
    log: LogPosition | None = None
    labels: Mapping[str, Any] | None = None
    pending: LabelRows = NO_ROWS

    @property
    def positions(self) -> dict[int, Position]:
        """Positions at which the source resumes; partitions at their beginning are omitted."""
        found = ((p, state.position) for p, state in self.partitions.items())
        return {p: position for p, position in found if position is not None}

    @property
    def classes(self) -> dict[str, list[str]]:
        """Texts of the relations and labels 0, 1, ... so far, by column: "relation", "label"."""
        return next(filter(None, map(saved_classes, self.positions.values())), {})

    @property
    def num_held(self) -> int:
        """Number of buffered events."""
        return sum(map(len, self.held))

    def held_rows(self) -> EventColumns | None:
        """Return the buffered events in order, None if there are none."""
        return merged(self.held) if self.held else None

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors of the state.

        Returns:
            Optionally `rows` (uint8, the buffered events as an Arrow IPC stream), `seen` (int64
            `[3, n]`: partition, row and event id), and `labels` (int64 `[5, n]`, `LabelRows`).
        """
        tensors = {}
        if (rows := self.held_rows()) is not None:
            batch, sink = to_arrow(rows), pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            tensors["rows"] = torch.frombuffer(bytearray(sink.getvalue()), dtype=torch.uint8)
        if self.windows:
            all_seen = [(p, window.seen()) for p, window in self.windows.items()]
            columns = [np.stack([np.full(len(s.seq), p), s.seq, s.ids]) for p, s in all_seen]
            tensors["seen"] = torch.from_numpy(np.concatenate(columns, axis=1))
        if self.labels is not None:
            tensors["labels"] = torch.stack([*map(torch.from_numpy, self.pending)])
        return tensors

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-serializable remainder of the state."""
        return {name: getattr(self, name) for name in _NOTED} | {
            "partitions": {str(p): asdict(state) for p, state in self.partitions.items()},
            "counts": dict(self.counts),
            "log": None if self.log is None else self.log.to_json(),
        }

    @classmethod
    def from_json(cls, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> IngestState:
        """Return the state for the results of `to_json()` and `state_dict()`."""
        try:
            noted = {name: read_as(x, meta[name], f"ingest.{name}") for name, x in _NOTED.items()}
            buffer = ReorderBuffer()
            if "rows" in tensors:
                with pa.ipc.open_stream(pa.py_buffer(tensors["rows"].numpy())) as reader:
                    batch = reader.read_next_batch()
                batch.validate(full=True)
                buffer.add(from_arrow(batch))
            noted["partitions"] = {int(p): each for p, each in noted["partitions"].items()}
            if noted["log"] is not None:
                noted["log"] = LogPosition.from_json(noted["log"])
            if noted["labels"] is not None:
                noted["pending"] = LabelRows(*tensors["labels"].numpy())
            windows, none = {}, torch.empty(3, 0, dtype=torch.int64)
            partition, seq, ids = tensors.get("seen", none).numpy()
            for p in np.unique(partition).tolist():
                own = partition == p
                windows[p] = DedupWindow([Seen(seq[own], ids[own])], 1, int(seq[own][0]))
            return cls(**noted, held=buffer.held(), windows=windows)
        except (LookupError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
            raise UntrustedCheckpoint(f"this is not a state of ingestion: {error!r}") from None


_NOTED: Mapping[str, Any] = {
    "num_released": int,
    "watermark": int,
    "last_t": int,
    "partitions": dict[str, PartitionState],
    "counts": dict[str, dict[str, Any]],
    "letters": dict[str, Any] | None,
    "log": dict[str, int] | None,
    "labels": dict[str, Any] | None,
}
"""Fields of `IngestState` in JSON, with their types."""
