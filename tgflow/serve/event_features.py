"""Features of events that are asked about, by the columns of the run's stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from tgflow.base.text import printable
from tgflow.streams.files.columnar import as_table
from tgflow.streams.options import StreamOptions
from tgflow.streams.rows.row_batch import Float32s
from tgflow.streams.rows.validate import BadRows, feature_columns


class EventFeatures:
    """Encodes features of single events as the stream would encode those of its next event.

    `widths` are those of the feature columns by name, in order, categorical ones last; empty if the
    stream has not named them. `texts` returns the categories 0, 1, ... so far of a column.
    """

    def __init__(
        self,
        stream: StreamOptions,
        widths: Mapping[str, int],
        texts: Callable[[str], Sequence[str]],
    ) -> None:
        given = stream.categorical or ()
        self.widths = widths
        self._categorical = {given} if isinstance(given, str) else {*given}
        self._fill, self._texts = stream.fill_missing, texts

    def rows(self, x: Any, size: int, dim: int) -> Tensor:
        """Return the features of events as numbers, not scaled, float32 `[size, dim]`.

        `x` is a mapping from columns to values, for all events; one of each; a table; or, without
        categorical columns, an array of numbers in the order of the columns. Raises ValueError if a
        value is missing, or invalid for its column; or the size is another.
        """
        if isinstance(x, Mapping):
            x = [x] * size
        table = as_table(x) if hasattr(x, "__arrow_c_stream__") else None
        if table is None and isinstance(x, Sequence) and x and isinstance(x[0], Mapping):
            table = self._table_of(x)
        if table is not None:
            if len(table) != size:
                text = f"x must be one for all of {size} events, or one for each, got {len(table)}"
                raise ValueError(text)
            return self._encoded(table)
        if size and self._categorical:
            raise ValueError(f"x must have the columns of each event by name: {self.names}")
        try:
            rows = torch.as_tensor(x, dtype=torch.float32)
        except (TypeError, ValueError):  # rows of several lengths
            rows = torch.empty(0, 0)
        if rows.shape != (size, dim) or not rows.isfinite().all():
            raise ValueError(
                f"x must have {dim} finite features of each of {size} events, or their columns by "
                f"name ({self.names}), got {list(rows.shape)}"
            )
        return rows

    @property
    def names(self) -> str:
        """The columns, for messages."""
        return printable(", ".join(self.widths), 200) or "the run's stream has not named any"

    def _table_of(self, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
        for i, row in enumerate(rows):
            if unknown := row.keys() - self.widths.keys():
                name = printable(str(min(unknown)), 60)
                text = f"{name!r} is no feature column of the stream; these are {self.names}"
                raise ValueError(f"x of event {i}: {text}")
            if self._fill is None and (lost := self.widths.keys() - row.keys()):
                raise self._missing(min(lost), f" of event {i}")
        columns = {name: [row.get(name) for row in rows] for name in self.widths}
        for name in self._categorical & columns.keys():
            columns[name] = [None if x is None else _text(x) for x in columns[name]]
        try:
            return pa.table({name: pa.array(values) for name, values in columns.items()})
        except pa.ArrowException as error:
            raise ValueError(f"x: values of one column have several types: {error}") from None

    def _missing(self, name: str, of: str = "") -> ValueError:
        way_out = "give it, or start the run with a value for missing ones, --fill-missing 0"
        return ValueError(f"x{of} has no {name!r}; {way_out}")

    def _encoded(self, table: pa.Table) -> Tensor:
        columns = {}
        for name in self.widths:
            if name in table.column_names:
                columns[name] = table[name].combine_chunks()
            elif self._fill is None:
                raise self._missing(name)
            if name not in columns or pa.types.is_null(columns[name].type):
                columns[name] = pa.nulls(len(table), pa.float32())
        batch = pa.RecordBatch.from_pydict(columns)
        numbers = {n: width for n, width in self.widths.items() if n not in self._categorical}
        try:
            parts = [feature_columns(batch, [*numbers], [*numbers.values()], None, self._fill)]
        except BadRows as error:
            row = int(error.rows.argmax())
            text = error.fault(row)[1].partition(";")[0]
            raise ValueError(f"x of event {row}: {text}") from None
        parts += [self._slots(batch[n], n) for n in self.widths if n in self._categorical]
        return torch.from_numpy(np.concatenate(parts, axis=1))

    def _slots(self, values: pa.Array, name: str) -> Float32s:
        """Return categories as `TextClasses.one_hot` of a single next row does."""
        width = self.widths[name]
        known = {text: i for i, text in enumerate(self._texts(name))}
        new, texts = min(len(known), width - 1), values.cast(pa.string()).to_pylist()
        found = [known.get(text, new) if text else width - 1 for text in texts]
        slots = np.zeros((len(found), width), dtype=np.float32)
        slots[np.arange(len(found)), found] = 1
        return slots


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
