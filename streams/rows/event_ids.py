"""Event ids as text, and as 64-bit hashes, by which events that come twice are found."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tgflow.streams.errors import RowFault
from tgflow.streams.rows.checks import Int64s
from tgflow.streams.rows.columns import is_text, plain_type


def hash_event_ids(
    column: pa.Array, name: str, kept: Int64s | None
) -> tuple[Int64s | None, pa.Array, Int64s, list[RowFault]]:
    """Return the event ids of good rows, and their hashes.

    Args:
        column: The event ids of all rows, good and bad, of any Arrow type.
        name: What it is called.
        kept: Of each good row its number in `column`; None if all are good.

    Returns:
        Which of the good rows have an id, by their number among the good ones, None if all have;
        the ids of those as text; their hashes; and the faults of the others, by their number in
        `column`.
    """
    index = np.arange(len(column)) if kept is None else kept
    code, text = "null", f"{name} is missing; every event needs its id"
    if _can_be_ids(column.type):
        texts = column.take(pa.array(index)).cast(pa.string())  # bad rows may not even be readable
    else:
        texts = pa.nulls(len(index), pa.string())
        code, text = "type", f"{name} is of type {column.type}; event ids are texts or integers"
    has_id = pc.fill_null(pc.greater(pc.binary_length(texts), 0), False)
    good, faults = None, []
    if not pc.all(has_id).as_py():
        found = has_id.to_numpy(zero_copy_only=False)
        good = np.flatnonzero(found)
        faults = [RowFault(row, code, text) for row in index[~found].tolist()]
        texts = texts.filter(has_id)
    hashes = np.fromiter(map(_hash, texts.to_pylist()), dtype=np.int64, count=len(texts))
    return good, texts, hashes, faults


def _can_be_ids(kind: pa.DataType) -> bool:
    kind = plain_type(kind)
    return is_text(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind)


def _hash(value: str) -> int:
    return int.from_bytes(blake2b(value.encode(), digest_size=8).digest(), "little", signed=True)
