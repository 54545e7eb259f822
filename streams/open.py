"""The front door: from a path or a table to a source."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tgflow.ids import NodeIds
from tgflow.streams.decoder import Decoder
from tgflow.streams.errors import StreamError
from tgflow.streams.formats import FORMATS, decoder_for
from tgflow.streams.formats.jodie import JodieDecoder
from tgflow.streams.formats.table import TableDecoder, as_table
from tgflow.streams.schema import IdKind, Scale, Schema
from tgflow.streams.source import EventSource


def open_stream(
    source: Any,
    *,
    src: str = "src",
    dst: str = "dst",
    t: str = "t",
    label: str | None = None,
    features: str | Sequence[str] | None = None,
    time_unit: str = "s",
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
    that offer the Arrow C stream (pandas, polars), and dicts of columns (NumPy, torch, lists).

    Args:
        source: A path, a list of paths, or a table.
        src: Name of the column of source nodes: integers or strings.
        dst: Name of the column of destination nodes.
        t: Name of the column of times: numbers in `time_unit`, or a timestamp column.
        label: Name of the column of integer edge types or labels; None reads none.
        features: Names of the edge feature columns, or the prefix they share; columns of lists will
            do. None reads those that the format declares (JODIE's), else none.
        time_unit: Unit of the file's times: s, ms, us, ns, m, h, d, day, or tick.
        tick_unit: Unit of the stream's int64 ticks, `time_unit` if None. Times that fall between
            two ticks are an error, never rounded: `time_unit="s", tick_unit="ms"` keeps 3 decimals.
        format: csv, tsv, jodie, parquet, arrow or jsonl; None goes by the name's ending.
        id_kind: "int" or "string"; None goes by the first row.
        bipartite: Whether sources and destinations are separate name spaces; None means only for
            JODIE's files.
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
    if id_kind not in (None, "int", "string"):
        raise ValueError(f"unknown id_kind {id_kind!r}; choose 'int', 'string' or None")
    decoders = _decoders(source, format)
    if bipartite is None:
        bipartite = any(isinstance(decoder, JodieDecoder) for decoder in decoders)
    time = Scale.between(time_unit, tick_unit or time_unit)
    schema = Schema(src, dst, t, label, features, id_kind, time)
    return EventSource(decoders, schema, NodeIds(bipartite) if ids is None else ids, sort)


def _decoders(source: Any, format: str | None) -> list[Decoder]:
    if isinstance(source, str | os.PathLike):
        return [decoder_for(path, format) for path in _files(Path(source))]
    if isinstance(source, Sequence) and all(isinstance(p, str | os.PathLike) for p in source):
        return [decoder_for(Path(path), format) for path in source]
    table = as_table(source)
    if table is None:
        raise TypeError(
            f"cannot read events from a {type(source).__name__}; pass a path "
            f"({', '.join(FORMATS)}), a pyarrow table, a data frame with __arrow_c_stream__, "
            "or a dict of columns"
        )
    return [TableDecoder(table)]


def _files(path: Path) -> list[Path]:
    """Return a file itself, or the files of a folder in order of name."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {str(path)!r}")
    if not path.is_dir():
        return [path]
    files = [file for file in path.iterdir() if file.is_file() and file.name[0] not in "._"]
    if not files:
        raise StreamError(str(path), "schema", "the folder holds no files")
    return sorted(files, key=_natural)


def _natural(path: Path) -> list[tuple[str, int]]:
    """Return a key that orders `part-2` before `part-10`: texts and numbers in turn."""
    texts, numbers = re.split("[0-9]+", path.name), re.findall("[0-9]+", path.name)
    return list(zip(texts, map(int, [*numbers, 0]), strict=True))
