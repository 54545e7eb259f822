"""From decoded rows to events and bad rows: every check of every field, for every source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from tgflow.streams.errors import RowFault
from tgflow.streams.rows.checks import (
    BadRows,
    Fault,
    Float32s,
    Int64s,
    invalid_rows,
    refuse,
    refuse_each,
)
from tgflow.streams.rows.classes import LabelClasses
from tgflow.streams.rows.columns import EventColumns, id_column, is_text, plain_type
from tgflow.streams.rows.event_ids import hash_event_ids
from tgflow.streams.rows.features import feature_columns
from tgflow.streams.rows.limits import Checks
from tgflow.streams.rows.row_batch import Origin, Position, RowBatch, nowhere
from tgflow.streams.rows.schema import UNSCALED, Columns, IdKind, Scale
from tgflow.streams.rows.ticks import tick_column


@dataclass(frozen=True, slots=True)
class RowSchema:
    """What a row must be to become an event.

    Args:
        columns: The columns of the rows.
        ids: What the node ids are.
        time: How times become ticks.
        widths: Of each feature column how many values a row has: 1, or the length of its lists.
        checks: Limits on the values.
        classes: What labels become that are texts; None: they are numbers.
    """

    columns: Columns
    ids: IdKind
    time: Scale
    widths: tuple[int, ...] = ()
    checks: Checks = field(default_factory=Checks)
    classes: LabelClasses | None = None


def validate(
    batch: pa.RecordBatch,
    schema: RowSchema,
    *,
    index: Int64s | None = None,
    faults: Sequence[RowFault] = (),
    locate: Callable[[int], Origin] = nowhere,
    position: Position | None = None,
) -> RowBatch:
    """Return the events among decoded rows, and what is wrong with each of the others.

    Of a bad row the first fault counts, in the order src, dst, t, label, features, weight, event
    id. What a
    row becomes depends on that row alone, not on its neighbors. A batch without bad rows is checked
    once, column by column; others once more for each kind of fault in them.

    Args:
        batch: Decoded rows with at least the columns of `schema`, of any Arrow types and from
            anywhere: text that is not UTF-8, and values that lie outside of the buffers, are bad
            rows too. (A batch whose buffers lie about their own sizes does not pass
            `pa.ipc.open_stream`.)
        schema: What a row must be.
        index: Of each decoded row its number, increasing; None if all rows could be decoded.
        faults: What is wrong with the rows that could not be decoded, by number.
        locate: Returns where a row came from, by number.
        position: Where the partition resumes after these rows.
    """
    num_rows = len(batch) + len(faults)
    events, kept, found = _checked(batch, schema)
    event_ids = None
    if (name := schema.columns.event_id) is not None:
        good, texts, event_ids, missing = hash_event_ids(batch[name], name, kept)
        if good is not None:
            events, kept = events.take(good), np.arange(len(batch)) if kept is None else kept
            kept, found = kept[good], found + missing
        events = replace(events, event_id=texts)
    if index is not None:
        found = [RowFault(int(index[fault.row]), fault.code, fault.text) for fault in found]
        index = index if kept is None else index[kept]
    else:
        index = kept
    found = sorted([*faults, *found], key=lambda fault: fault.row)
    return RowBatch(events, index, found, num_rows, locate, position or {}, event_ids)


def _checked(
    batch: pa.RecordBatch, schema: RowSchema
) -> tuple[EventColumns, Int64s | None, list[RowFault]]:
    """Return the events, of each its number in `batch` (None if all are events), and the faults."""
    index: Int64s | None = None
    faults: list[RowFault] = []
    while True:
        try:
            if index is None:
                _refuse_invalid(batch, schema.columns.names)
            return _events(batch, schema), index, faults
        except BadRows as bad:
            index = np.arange(len(batch)) if index is None else index
            found = np.flatnonzero(bad.rows).tolist()
            faults += [RowFault(int(index[row]), *bad.fault(row)) for row in found]
            good = np.flatnonzero(~bad.rows)
            batch, index = batch.take(pa.array(good)), index[good]


def _refuse_invalid(batch: pa.RecordBatch, names: Sequence[str]) -> None:
    """Raise `BadRows` where any column holds what its type cannot, before anything reads it."""
    invalid = {name: rows for name in names if (rows := invalid_rows(batch[name])) is not None}
    if not invalid:
        return

    def fault(row: int) -> Fault:
        name = next(name for name, rows in invalid.items() if rows[row])
        if is_text(batch[name].type):
            return "encoding", f"{name} is not UTF-8; write the file as UTF-8"
        return "encoding", f"{name} is no valid {batch[name].type}: the data is damaged"

    refuse_each(np.logical_or.reduce(list(invalid.values())), fault)


def _events(batch: pa.RecordBatch, schema: RowSchema) -> EventColumns:
    """Return all rows as events; raise `BadRows` at the first check that some do not pass."""
    columns, checks = schema.columns, schema.checks
    return EventColumns(
        src=id_column(batch[columns.src], columns.src, schema.ids, checks.max_node_id),
        dst=id_column(batch[columns.dst], columns.dst, schema.ids, checks.max_node_id),
        t=tick_column(batch[columns.t], columns.t, schema.time),
        label=_labels(batch, schema),
        x=feature_columns(
            batch, columns.features, schema.widths, checks.max_abs, columns.fill_missing
        )
        if columns.features
        else None,
        weight=None if columns.weight is None else _weights(batch, columns.weight),
    )


def _weights(batch: pa.RecordBatch, name: str) -> Float32s:
    values: Float32s = feature_columns(batch, [name], [1], None, what="weights").reshape(-1)
    refuse(values < 0, "range", lambda row: f"{name} is {values[row]}; weights must be at least 0")
    return values


def _labels(batch: pa.RecordBatch, schema: RowSchema) -> Int64s | None:
    name, checks = schema.columns.label, schema.checks
    if not name:
        return None
    if schema.classes is not None and is_text(plain_type(batch[name].type)):
        values = schema.classes.encode(batch[name], name)
    else:
        values = tick_column(batch[name], name, UNSCALED)
    bad = (values < checks.min_label) | (values > checks.max_label)
    limits = f"outside of [{checks.min_label}, {checks.max_label}]"
    refuse(bad, "range", lambda row: f"{name} is {values[row]}, {limits}")
    return values
