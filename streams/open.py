"""The front door: from a path or a table to a source."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tgflow.ids import NodeIds
from tgflow.streams.files.blocks import BLOCK_BYTES
from tgflow.streams.files.file_list import Files, Folder
from tgflow.streams.files.file_source import FileSource
from tgflow.streams.files.formats import FORMATS, decoder_for
from tgflow.streams.files.reader import Reader
from tgflow.streams.files.table import TableDecoder, as_table
from tgflow.streams.rows.limits import Checks
from tgflow.streams.rows.schema import IdKind, Schema
from tgflow.streams.rows.times import Times
from tgflow.streams.source import EventSource


def open_stream(
    source: Any,
    *,
    src: str = "src",
    dst: str = "dst",
    t: str = "t",
    label: str | None = None,
    features: str | Sequence[str] | None = None,
    time_unit: str | None = None,
    tick_unit: str | None = None,
    format: str | None = None,
    id_kind: IdKind | None = None,
    bipartite: bool | None = None,
    sort: bool = False,
    ids: NodeIds | None = None,
) -> EventSource:
    """Return the events of a file, a folder, or a table in memory as one ordered stream.

    Files are CSV, TSV, JSON lines (each also compressed: `.gz`, `.zst`, `.bz2`), Parquet, Arrow IPC
    and Feather. JODIE's CSV files are read as they are published: their columns are called src,
    dst, t, label, f0, f1, ..., the stream is bipartite and its features are read. A folder is read
    file after file in order of name, where digits count as numbers (`part-2` before `part-10`);
    names that start with `.` or `_` are skipped. Tables are pyarrow tables and batches, data frames
    that offer the Arrow C stream (pandas, polars), dicts of columns (NumPy, torch, lists), and
    `TemporalData` of PyTorch Geometric, whose features are `features="msg"`.

    As they are published: DyGLib's `ml_NAME.csv` with the features in `ml_NAME.npy`, SNAP's `.txt`
    (src, dst, t) and KONECT's `out.NAME` (src, dst, weight, t) without headers; and `.npz` and
    `.pt`, arrays and tensors by name, in which nothing is ever unpickled or run.

    Args:
        source: A path, a list of paths, or a table.
        src: Name of the column of source nodes: integers or strings.
        dst: Name of the column of destination nodes.
        t: Name of the column of times: numbers in `time_unit`, or a timestamp column.
        label: Name of the column of integer edge types or labels; None reads none.
        features: Names of the edge feature columns, or the prefix they share; columns of lists will
            do. None reads those that the format declares (JODIE's), else none.
        time_unit: Unit of the file's numbers: s, ms, us, ns, m, h, d, day, or tick. None goes by
            the first rows: ms, us or ns where all of them are dates of 1980 to 2099 in that unit,
            else s. Times may also be timestamps, and texts such as `2024-05-01 12:00:00.5+02:00`
            (ISO 8601, or as SQL writes it); without a zone they are UTC.
        tick_unit: Unit of the stream's int64 ticks; None is `time_unit`, or without one what the
            decimals of the first timestamps and texts need. Times that fall between two ticks are
            an error, never rounded: `time_unit="s", tick_unit="ms"` keeps 3 decimals. The least and
            the largest int64 are no times.
        format: csv, tsv, jodie, dyglib, snap, konect, parquet, arrow, jsonl, npz or pt; None goes
            by the name's ending.
        id_kind: "int" or "string"; None goes by the first row.
        bipartite: Whether sources and destinations are separate name spaces; None: where the file
            says so, as JODIE's and some of KONECT's do.
        sort: Read everything first and sort it by time, ties in file order. Without it times must
            not decrease.
        ids: A map that has ids already, or None for a new one. `bipartite` is then the map's.

    Returns:
        A source that can be iterated again and again, in bounded memory unless `sort`.

    Raises:
        FileNotFoundError: If there is no such file or folder.
        StreamError: If a file is of no known format, or lacks a column. Iterating raises it at the
            first row that is no event, naming file and line (or row, from 0).
        ValueError: If an argument is out of its choices.
    """
    schema = _schema(src, dst, t, label, features, id_kind)
    files = _files(source, format)
    if ids is None:
        ids = NodeIds(_is_bipartite(files) if bipartite is None else bipartite)
    reader = Reader(files, schema, Times(time_unit, tick_unit), Checks())
    return EventSource(_name(source, files), reader, ids, sort)


def open_files(
    source: Any,
    *,
    src: str = "src",
    dst: str = "dst",
    t: str = "t",
    label: str | None = None,
    features: str | Sequence[str] | None = None,
    time_unit: str | None = None,
    tick_unit: str | None = None,
    format: str | None = None,
    id_kind: IdKind | None = None,
    event_id: str | None = None,
    bipartite: bool | None = None,
    checks: Checks | None = None,
    max_file_bytes: int | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> FileSource:
    """Return a file, a folder or a table as a source that can resume at any position.

    Rows that are no events do not end it: each comes as a bad row with its place (the byte in the
    text, or the row) and its bytes. Times may come in any order; `Ingest` sorts them.

    Args:
        source: As for `open_stream`, and so are the arguments that are not named below.
        src: Name of the column of source nodes.
        dst: Name of the column of destination nodes.
        t: Name of the column of times.
        label: Name of the column of labels, or None.
        features: Names of the feature columns, the prefix they share, or None.
        time_unit: Unit of the file's times; None goes by the first rows.
        tick_unit: Unit of the stream's ticks.
        format: The format, None to go by the name's ending.
        id_kind: "int" or "string"; None goes by the first row that can be read.
        event_id: Name of a column of texts or integers by which events that come twice are found,
            if `OrderConfig.dedup_window` says so; None reads none.
        bipartite: Whether sources and destinations are separate name spaces.
        checks: Limits on the values; None for those of `Checks()`.
        max_file_bytes: How many bytes of text a compressed file may hold; None for 1 GiB, or 200
            times its own size where that is more.
        block_bytes: How much of a text file to parse at a time. It does not change what is read.

    Raises:
        FileNotFoundError: If there is no such file or folder.
        StreamError: If a file is of no known format, or lacks a column.
        ValueError: If an argument is out of its choices.
    """
    schema = _schema(src, dst, t, label, features, id_kind, event_id)
    files = _files(source, format, max_file_bytes, block_bytes)
    reader = Reader(files, schema, Times(time_unit, tick_unit), checks or Checks())
    bipartite = _is_bipartite(files) if bipartite is None else bipartite
    return FileSource(_name(source, files), reader, NodeIds(bipartite))


def _schema(
    src: str,
    dst: str,
    t: str,
    label: str | None,
    features: str | Sequence[str] | None,
    id_kind: IdKind | None,
    event_id: str | None = None,
) -> Schema:
    if id_kind not in (None, "int", "string"):
        raise ValueError(f"unknown id_kind {id_kind!r}; choose 'int', 'string' or None")
    return Schema(src, dst, t, label, features, id_kind, event_id)


def _name(source: Any, files: Files) -> str:
    return str(source) if isinstance(source, str | os.PathLike) else files.names[0]


def _is_bipartite(files: Files) -> bool:
    return any(decoder.bipartite for decoder in files.decoders)


def _files(
    source: Any, format: str | None, max_bytes: int | None = None, block_bytes: int = BLOCK_BYTES
) -> Files:
    open_file = partial(decoder_for, format=format, max_bytes=max_bytes, block_bytes=block_bytes)
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if not path.exists():
            raise FileNotFoundError(f"there is no file or folder {str(path)!r}")
        return Folder(path, open_file) if path.is_dir() else Files([open_file(path)], [path.name])
    if isinstance(source, Sequence) and all(isinstance(p, str | os.PathLike) for p in source):
        paths = [Path(path) for path in source]
        return Files([open_file(path) for path in paths], [path.name for path in paths])
    table = as_table(source)
    if table is None:
        raise TypeError(
            f"cannot read events from a {type(source).__name__}; pass a path "
            f"({', '.join(FORMATS)}), a pyarrow table, a data frame with __arrow_c_stream__, "
            "or a dict of columns"
        )
    return Files([TableDecoder(table)], ["table"])
