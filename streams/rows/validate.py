"""From decoded rows to events and bad rows: every check of every field, for every source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tgflow.streams.errors import RowFault
from tgflow.streams.rows.checks import (
    BadRows,
    Checks,
    Fault,
    Int64s,
    invalid_rows,
    refuse,
    refuse_each,
)
from tgflow.streams.rows.columns import EventColumns, id_column, is_text
from tgflow.streams.rows.features import feature_columns
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
    """

    columns: Columns
    ids: IdKind
    time: Scale
    widths: tuple[int, ...] = ()
    checks: Checks = field(default_factory=Checks)


@dataclass(frozen=True, slots=True)
class Validated:
    """The rows of a batch, told apart.

    Args:
        events: The good rows.
        index: Of each good row its number in the batch, int64, increasing; None if all are good.
        faults: What is wrong with each of the others, by number.
    """

    events: EventColumns
    index: Int64s | None
    faults: Sequence[RowFault]


def validate(batch: pa.RecordBatch, form: RowSchema) -> Validated:
    """Return the events of `batch` and all of its rows that are none.

    Of a bad row the first fault is told, in the order src, dst, t, label, features. What a row
    becomes depends on that row alone, not on its neighbors. A batch without bad rows is checked
    once, column by column; others once more for each kind of fault in them.

    Args:
        batch: Decoded rows with at least the columns of `form`, of any Arrow types and from
            anywhere: text that is not UTF-8, and values that lie outside of the buffers, are bad
            rows too. (A batch whose buffers lie about their own sizes does not pass
            `pa.ipc.open_stream`.)
        form: What a row must be.
    """
    index: Int64s | None = None
    faults: list[RowFault] = []
    while True:
        try:
            if index is None:
                _refuse_invalid(batch, form.columns.names)
            events = _events(batch, form)
            break
        except BadRows as bad:
            index = np.arange(len(batch)) if index is None else index
            found = np.flatnonzero(bad.rows).tolist()
            faults += [RowFault(int(index[row]), *bad.fault(row)) for row in found]
            good = np.flatnonzero(~bad.rows)
            batch, index = batch.take(pa.array(good)), index[good]
    faults.sort(key=lambda fault: fault.row)
    return Validated(events, index, faults)


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


def _events(batch: pa.RecordBatch, form: RowSchema) -> EventColumns:
    """Return all rows as events; raise `BadRows` at the first check that some do not pass."""
    columns, checks = form.columns, form.checks
    return EventColumns(
        src=id_column(batch[columns.src], columns.src, form.ids, checks.max_node_id),
        dst=id_column(batch[columns.dst], columns.dst, form.ids, checks.max_node_id),
        t=tick_column(batch[columns.t], columns.t, form.time),
        label=_labels(batch, form),
        x=feature_columns(batch, columns.features, form.widths, checks.max_abs)
        if columns.features
        else None,
    )


def _labels(batch: pa.RecordBatch, form: RowSchema) -> Int64s | None:
    name, checks = form.columns.label, form.checks
    if not name:
        return None
    values = tick_column(batch[name], name, UNSCALED)
    bad = (values < checks.min_label) | (values > checks.max_label)
    limits = f"outside of [{checks.min_label}, {checks.max_label}]"
    refuse(bad, "range", lambda row: f"{name} is {values[row]}, {limits}")
    return values
