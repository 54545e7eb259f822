"""Packed structures: one a record, or several; NumPy says how they lie."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import compress

import numpy as np
import pyarrow as pa

from tgflow.streams.kafka.codecs.codec import Parsed
from tgflow.streams.kafka.codecs.fields import Fields
from tgflow.streams.rows.checks import Fault
from tgflow.streams.rows.schema import listed

KINDS = "iuf"
"""Integers, unsigned ones, and floats."""


class StructCodec:
    """Structures of fixed size, without padding but what the layout names.

    Args:
        fields: The fields.
        layout: Each field as NAME:TYPE in NumPy's words, such as "src:<i8,x:<f4[4]".

    Raises:
        ValueError: If there is no layout, or it lacks a field or has one that is no number.
    """

    def __init__(self, fields: Fields, layout: str | None) -> None:
        if not layout:
            raise ValueError('codec="struct" needs layout, as "src:<i8,dst:<i8,t:<i8,x:<f4[4]"')
        self._fields = fields
        self._dtype = struct_dtype(layout)
        names = self._dtype.names or ()
        for name in fields.names:
            if name not in names:
                raise ValueError(
                    f"layout {layout!r} lacks the field {name!r}; it has {listed(names)}"
                )
        widths = zip(fields.form.columns.features, fields.form.widths, strict=True)
        for name, width in widths:
            found = int(np.prod(self._dtype[name].shape, dtype=np.int64))
            if found != width:
                raise ValueError(
                    f"layout {layout!r} has {found} numbers in {name!r}, expected {width}"
                )

    def parse(self, values: Sequence[bytes]) -> Parsed:
        """Return the structures of records whose length is a multiple of theirs."""
        sizes = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
        size = self._dtype.itemsize
        num_rows, rest = np.divmod(sizes, size)
        bad = (rest != 0) | (sizes == 0)
        if bad.any():
            values = list(compress(values, ~bad))
            num_rows[bad] = 1
        rows = np.frombuffer(b"".join(values), dtype=self._dtype)
        firsts = np.cumsum(num_rows) - num_rows
        faults = {int(firsts[i]): self._fault(int(sizes[i])) for i in np.flatnonzero(bad)}
        return Parsed([self._batch(rows)] if len(rows) else [], num_rows, faults)

    def raw(self, value: bytes, row: int) -> bytes:
        """Return the fields of a structure as JSON."""
        found = np.frombuffer(value, dtype=self._dtype)[row]
        return json.dumps({name: found[name].tolist() for name in self._fields.names}).encode()

    def _fault(self, size: int) -> Fault:
        text = (
            f"the record has {size} bytes, no multiple of the {self._dtype.itemsize} of the layout"
        )
        return "syntax", text

    def _batch(self, rows: np.ndarray) -> pa.RecordBatch:
        arrays = [_array(rows[name]) for name in self._fields.names]
        return pa.RecordBatch.from_arrays(arrays, names=self._fields.names)


def struct_dtype(layout: str) -> np.dtype[np.void]:
    """Return the structure that `layout` describes, as "src:<i8,dst:<i8,t:<i8,x:<f4[4]".

    Raises:
        ValueError: If it cannot be read, or a field is no number.
    """
    fields = []
    for part in layout.split(","):
        name, _, kind = part.strip().partition(":")
        kind, _, width = kind.partition("[")
        try:
            shape = (int(width.removesuffix("]")),) if width else ()
            dtype = np.dtype(kind)
        except (TypeError, ValueError):
            dtype, shape = np.dtype(object), ()
        if not name or dtype.kind not in KINDS or (shape and shape[0] < 1):
            text = f"layout has {part!r}, expected NAME:TYPE with a type such as <i8 or <f4[4]"
            raise ValueError(text)
        fields.append((name, dtype, shape))
    return np.dtype(fields)


def _array(column: np.ndarray) -> pa.Array:
    native = np.ascontiguousarray(column.astype(column.dtype.newbyteorder("="), copy=False))
    if native.ndim == 1:
        return pa.array(native)
    return pa.FixedSizeListArray.from_arrays(pa.array(native.reshape(-1)), native.shape[1])
