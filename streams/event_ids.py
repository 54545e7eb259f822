"""Event ids as 64-bit hashes, by which events that come twice are told."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tgflow.streams.checks import Int64s
from tgflow.streams.columns import is_text
from tgflow.streams.errors import RowFault, StreamError
from tgflow.streams.validate import Validated

_KINDS = "event ids are texts or integers"


def hashes(column: pa.Array, name: str, rows: Validated) -> tuple[Validated, Int64s]:
    """Return the hashes of the good rows, and `rows` without those that have no event id.

    Args:
        column: The event ids of all rows, good and bad, of any Arrow type.
        name: What it is called.
        rows: What became of these rows otherwise.

    Raises:
        StreamError: If the type is none of texts or integers.
    """
    if not _can_be_ids(column.type):
        raise StreamError(name, "type", f"{name} is of type {column.type}; {_KINDS}")
    texts = column.cast(pa.string())
    missing = pc.or_kleene(pc.is_null(texts), pc.equal(pc.binary_length(texts), 0))
    missing = pc.fill_null(missing, True).to_numpy(zero_copy_only=False)
    index = np.arange(len(column)) if rows.index is None else rows.index
    if missing.any():
        kept = ~missing[index]
        text = f"{name} is missing; every event needs its id"
        faults = [RowFault(int(row), "null", text) for row in index[~kept]]
        events = rows.events.take(np.flatnonzero(kept))
        index = index[kept]
        merged = sorted([*rows.faults, *faults], key=lambda fault: fault.row)
        rows = Validated(events, index, merged)
    values = texts.take(pa.array(index)).to_pylist()
    return rows, np.fromiter(map(_hash, values), dtype=np.int64, count=len(values))


def _can_be_ids(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return is_text(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind)


def _hash(value: str) -> int:
    return int.from_bytes(blake2b(value.encode(), digest_size=8).digest(), "little", signed=True)
