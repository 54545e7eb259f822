"""Columns of times as text, read at once where all are plain."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tgflow.iso import CLOCK, DAY
from tgflow.streams.rows.checks import Int64s
from tgflow.units import INT64_MAX, ticks_per_unit

_PLAIN = rf"^{DAY}([T ]{CLOCK}(:[0-9]{{2}}(\.[0-9]{{1,9}})?)?(Z|[+-][0-9]{{2}}(:?[0-9]{{2}})?)?)?$"
"""What Arrow reads as `iso_seconds` does."""
_ZONED = r":[^Z+-]*[Z+-]"


def plain_ticks(array: pa.Array, tick: str) -> Int64s | None:
    """Return the ticks of a column of texts at once, None unless all are plain and whole ticks."""
    texts = array.cast(pa.string())
    if tick == "tick" or not pc.all(pc.match_substring_regex(texts, _PLAIN)).as_py():
        return None
    unit = "ns" if tick == "ns" else "us"
    zoned = pc.match_substring_regex(texts, _ZONED)
    moments = np.empty(len(texts), dtype=np.int64)
    try:
        for rows, zone in ((zoned, "UTC"), (pc.invert(zoned), None)):
            kind = pa.timestamp(unit, zone)
            found = texts.filter(rows).cast(kind).cast(pa.int64())
            moments[rows.to_numpy(zero_copy_only=False)] = found.to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return None
    step = ticks_per_unit(unit, tick)
    whole, rest = np.divmod(moments, step.denominator)
    if rest.any() or (np.abs(whole) > INT64_MAX // step.numerator).any():
        return None
    return np.asarray(whole * step.numerator, dtype=np.int64)
