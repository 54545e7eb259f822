"""Tables that are read at once and as they are, such as one of nodes: of a file, or in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv, json

from tgflow.streams.errors import StreamError
from tgflow.streams.files.blocks import COMPRESSION
from tgflow.streams.files.formats import decoder_for, format_of
from tgflow.streams.files.table import BATCH_ROWS, ColumnarDecoder, as_table

_DELIMITERS = {"csv": ",", "tsv": "\t"}


def read_table(source: Any, texts: Sequence[str] = ()) -> tuple[str, pa.Table]:
    """Return what messages call a table, and all of it.

    Args:
        source: The path of a file, CSV, TSV or JSON lines (also `.gz`, `.zst`, `.bz2`), Parquet,
            Arrow, `.npz` or `.pt`; or a table in memory, as `open_stream` takes them.
        texts: Columns of CSV and TSV that are read as texts, as ids are: "007" is not 7.

    Raises:
        FileNotFoundError: If there is no such file.
        StreamError: If it cannot be read, or has no rows.
        TypeError: If the source is none.
    """
    if isinstance(source, str | os.PathLike):
        name, table = str(source), _read(Path(source), texts)
    else:
        name, found = "table", as_table(source)
        if found is None:
            raise TypeError(
                f"cannot read a table from a {type(source).__name__}; pass a path, a pyarrow "
                "table, a data frame with __arrow_c_stream__, or a dict of columns"
            )
        table = found
    if not len(table):
        raise StreamError(name, "schema", "it has no rows")
    return name, table.combine_chunks()


def _read(path: Path, texts: Sequence[str]) -> pa.Table:
    if not path.exists():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    kind = format_of(path)
    try:
        if kind in ("csv", "tsv", "jsonl"):
            with pa.input_stream(str(path), compression=COMPRESSION.get(path.suffix)) as text:
                return _read_text(text, kind, texts)
        decoder = decoder_for(path, kind)
    except (pa.ArrowException, OSError) as error:
        raise StreamError(str(path), "syntax", f"it cannot be read: {error}") from None
    if not isinstance(decoder, ColumnarDecoder):
        known = "CSV, TSV, JSON lines, Parquet, Arrow, .npz or .pt"
        raise StreamError(str(path), "schema", f"a table of nodes is {known}, got {kind}")
    batches = [*decoder.batches(decoder.names(), BATCH_ROWS)]
    return pa.Table.from_batches(batches) if batches else pa.table({})


def _read_text(text: Any, kind: str, texts: Sequence[str]) -> pa.Table:
    if kind == "jsonl":
        return json.read_json(text)
    return csv.read_csv(
        text,
        parse_options=csv.ParseOptions(delimiter=_DELIMITERS[kind], newlines_in_values=True),
        convert_options=csv.ConvertOptions(column_types=dict.fromkeys(texts, pa.string())),
    )
