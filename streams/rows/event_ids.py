"""Event ids as 64-bit hashes, by which events that come twice are told."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tgflow.streams.errors import RowFault
from tgflow.streams.rows.checks import Int64s
from tgflow.streams.rows.columns import is_text
from tgflow.streams.rows.validate import Validated


def hashes(column: pa.Array, name: str, rows: Validated) -> tuple[Validated, Int64s]:
    """Return the hashes of the good rows, and `rows` without those that have no event id.

    Args:
        column: The event ids of all rows, good and bad, of any Arrow type.
        name: What it is called.
        rows: What became of these rows otherwise.
    """
    index = np.arange(len(column)) if rows.index is None else rows.index
    code, text = "null", f"{name} is missing; every event needs its id"
    if _can_be_ids(column.type):
        texts = column.take(pa.array(index)).cast(pa.string())  # bad rows may not even be readable
    else:
        texts = pa.nulls(len(index), pa.string())
        code, text = "type", f"{name} is of type {column.type}; event ids are texts or integers"
    kept = pc.fill_null(pc.greater(pc.binary_length(texts), 0), False)
    if not pc.all(kept).as_py():
        good = kept.to_numpy(zero_copy_only=False)
        faults = [RowFault(row, code, text) for row in index[~good].tolist()]
        events = rows.events.take(np.flatnonzero(good))
        merged = sorted([*rows.faults, *faults], key=lambda fault: fault.row)
        rows, texts = Validated(events, index[good], merged), texts.filter(kept)
    return rows, np.fromiter(map(_hash, texts.to_pylist()), dtype=np.int64, count=len(texts))


def _can_be_ids(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return is_text(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind)


def _hash(value: str) -> int:
    return int.from_bytes(blake2b(value.encode(), digest_size=8).digest(), "little", signed=True)
