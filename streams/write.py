"""Writing streams to files, for a lossless round trip."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from tgflow.checkpoint.durable.fs import replacing, writing
from tgflow.streams.files.formats import WRITABLE, format_of
from tgflow.streams.files.text import COMPRESSION
from tgflow.streams.open import EventSource
from tgflow.streams.source import Source


def write_events(path: str | os.PathLike[str], source: Source) -> int:
    """Write a stream to a CSV, TSV, JSON lines, Parquet or Arrow file, by the ending of its name.

    The columns are src and dst (the stream's own ids, not the dense ones), t in ticks, optional
    relation and label (texts, where the stream has texts) and weight, and f0, f1, ... for the
    features. The write is atomic: an existing file is replaced once the new one is complete.

    Args:
        path: The file to write; text formats may end in `.gz`, `.zst` or `.bz2` as well.
        source: The stream; its ids distinguish sources and destinations if bipartite.

    Returns:
        The number of events written.

    Raises:
        ValueError: If the name has an unknown ending.
    """
    rows = (_named(events.to_arrow(source.ids), source) for events in source)
    columns = [(name, pa.int64()) for name in ("src", "dst", "t")]
    features = [(f"f{i}", pa.float32()) for i in range(source.x_dim)]
    return write_rows(path, rows, pa.schema(columns + features))


def _named(rows: pa.RecordBatch, source: Source) -> pa.RecordBatch:
    """Return rows with the texts of relations and labels, where the source has texts."""
    for role, names in source.classes.items() if isinstance(source, EventSource) else ():
        texts = pa.array(names, pa.string()).take(rows[role])
        rows = rows.set_column(rows.schema.get_field_index(role), role, texts)
    return rows


def write_rows(
    path: str | os.PathLike[str], rows: Iterable[pa.RecordBatch], schema: pa.Schema
) -> int:
    """Write rows to a CSV, TSV, JSON lines, Parquet or Arrow file, by the ending of its name.

    The write is atomic: an existing file is replaced once the new one is complete.

    Args:
        path: As `write_events`.
        rows: Batches of rows, all of one schema.
        schema: Schema of the file, used if there are no rows.
    """
    target, num_rows, write = Path(path), 0, None
    kind, compression = format_of(target), COMPRESSION.get(target.suffix)
    if kind not in WRITABLE:
        text = f"{str(path)!r} has no known ending; end it in .csv, .csv.gz, .tsv, .jsonl, "
        raise ValueError(f"{text}.parquet or .arrow")
    with replacing(target) as partial, ExitStack() as open_files:
        with writing():
            sink = open_files.enter_context(pa.OSFile(str(partial), "wb"))
        if compression:
            sink = open_files.enter_context(pa.CompressedOutputStream(sink, compression))
        for batch in rows:
            write = write or _writer(open_files, sink, kind, batch.schema)
            write(batch)
            num_rows += len(batch)
        if write is None:
            _writer(open_files, sink, kind, schema)
    return num_rows


def encode_rows(rows: pa.RecordBatch, kind: str, *, header: bool = False) -> bytes:
    """Encode rows as a chunk of a text file, which others may follow."""
    if kind == "jsonl":
        return b"".join(f"{json.dumps(row)}\n".encode() for row in rows.to_pylist())
    sink = pa.BufferOutputStream()
    pa.csv.write_csv(rows, sink, _csv_options(kind, header=header))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _writer(
    open_files: ExitStack, sink: Any, kind: str, schema: pa.Schema
) -> Callable[[pa.RecordBatch], Any]:
    """Return the function that writes a batch; the file is closed with `open_files`."""
    if kind == "jsonl":
        return lambda rows: sink.write(encode_rows(rows, kind))
    if kind == "parquet":
        writer: Any = pa.parquet.ParquetWriter(sink, schema, compression="zstd")
    elif kind == "arrow":
        writer = pa.ipc.new_file(sink, schema)
    else:
        writer = pa.csv.CSVWriter(sink, schema, write_options=_csv_options(kind, header=True))
    open_files.enter_context(writer)
    write: Callable[[pa.RecordBatch], Any] = writer.write_batch
    return write


def _csv_options(kind: str, *, header: bool) -> pa.csv.WriteOptions:
    return pa.csv.WriteOptions(
        include_header=header, delimiter="\t" if kind == "tsv" else ",", quoting_style="needed"
    )
