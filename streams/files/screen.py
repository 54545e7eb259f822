"""Which lines of delimited text seem wrong, found for a whole block at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tgflow.streams.files.blocks import TextBlock
from tgflow.streams.files.lines import BAD, OK, SUSPECT, Verdicts

Bools = npt.NDArray[np.bool_]


def screen(
    block: TextBlock, names: Sequence[str], delimiter: str, types: Mapping[str, pa.DataType]
) -> Verdicts | None:
    """Return what each line seems to be, None if quotes or line ends make that hard to tell.

    Args:
        block: The lines.
        names: Their columns.
        delimiter: What stands between two values, one byte.
        types: What the columns are read as, of those that are.
    """
    if any(byte in block.data for byte in (b'"', b"\r", b"\0")):
        return None
    ends = block.line_ends()
    found = np.flatnonzero(np.frombuffer(block.data, dtype=np.uint8) == ord(delimiter))
    counts = np.diff(np.searchsorted(found, ends), prepend=0)
    verdicts = np.where(counts == len(names) - 1, OK, BAD).astype(np.int8)
    rows = np.flatnonzero(verdicts == OK)
    if len(rows):
        table = _texts(block.taken(rows), names, delimiter, types)
        for name, kind in types.items():
            verdicts[rows] = np.maximum(verdicts[rows], _values(table[name], kind))
    return verdicts


def _texts(
    block: TextBlock, names: Sequence[str], delimiter: str, types: Mapping[str, pa.DataType]
) -> pa.Table:
    converting = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(types, pa.string()),
        include_columns=list(types),
        null_values=[],
        check_utf8=False,
    )
    reading = pa.csv.ReadOptions(
        column_names=list(names), use_threads=False, block_size=len(block.data) + 1
    )
    parsing = pa.csv.ParseOptions(delimiter=delimiter, quote_char=False, ignore_empty_lines=False)
    return pa.csv.read_csv(pa.BufferReader(block.data), reading, parsing, converting)


def _values(column: pa.ChunkedArray, kind: pa.DataType) -> Verdicts:
    """Return what the values of a column seem to be: wrong if they are not plain numbers."""
    if pa.types.is_integer(kind):
        plain, possible = r"^-?[0-9]{1,18}$", r"^\s*[-+]?(0[xX][0-9a-fA-F]+|[0-9]+)\s*$"
    elif pa.types.is_floating(kind):
        plain = r"^-?[0-9]{1,15}(\.[0-9]{0,17})?([eE][-+]?[0-9]{1,2})?$"
        possible = r"^\s*[-+]?([0-9.][0-9.eE+-]*|[iInN].*)\s*$"
    elif pa.types.is_decimal(kind):
        plain = rf"^-?[0-9]{{1,18}}(\.[0-9]{{0,{kind.scale}}})?$"
        possible = r"^\s*[-+.0-9eE]+\s*$"
    else:
        return np.full(len(column), OK, np.int8)
    if not pa.types.is_decimal(kind) and _converts(column, kind):
        return np.full(len(column), OK, np.int8)
    verdicts = np.where(_matches(column, plain), OK, SUSPECT).astype(np.int8)
    odd = np.flatnonzero(verdicts)
    if len(odd):
        certain = ~_matches(column.take(pa.array(odd)), possible)
        verdicts[odd[certain]] = BAD
    return verdicts


def _converts(column: pa.ChunkedArray, kind: pa.DataType) -> bool:
    try:
        column.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _matches(column: pa.ChunkedArray, pattern: str) -> Bools:
    found: Bools = pc.match_substring_regex(column, pattern).to_numpy()
    return found
