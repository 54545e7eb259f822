"""File formats, their decoders and file name endings."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from tgflow.base.secret import check_url
from tgflow.streams.errors import StreamError
from tgflow.streams.files.columnar import (
    BATCH_ROWS,
    ColumnarDecoder,
    arrow_decoder,
    as_table,
    parquet_decoder,
)
from tgflow.streams.files.csv import (
    EDGES,
    KONECT,
    SNAP,
    CsvDecoder,
    Dialect,
    JodieDecoder,
    check_quotes,
    is_jodie,
    plain_names,
    split_values,
)
from tgflow.streams.files.decoder import Decoder
from tgflow.streams.files.dyglib import HEADER as DYGLIB
from tgflow.streams.files.dyglib import DyglibDecoder
from tgflow.streams.files.jsonl import JsonlDecoder
from tgflow.streams.files.text import BLOCK_BYTES, BOM, COMPRESSION, Quotes, Text, TextFile, head_of
from tgflow.streams.options import TextLayout


@dataclass(frozen=True, slots=True)
class Format:
    """A file format.

    Args:
        dialect: Dialect of delimited text, which a `TextLayout` may adjust.
        is_text: Whether it is text, which may be compressed and may grow.
    """

    decoder: Callable[..., Decoder]
    endings: tuple[str, ...] = ()
    dialect: Dialect | None = None
    is_text: bool = True


FORMATS = {
    "csv": Format(CsvDecoder, (".csv",), Dialect(",")),
    "tsv": Format(CsvDecoder, (".tsv",), Dialect("\t")),
    "parquet": Format(parquet_decoder, (".parquet", ".pq"), is_text=False),
    "arrow": Format(arrow_decoder, (".arrow", ".feather", ".ipc"), is_text=False),
    "jsonl": Format(JsonlDecoder, (".jsonl", ".ndjson")),
    "jodie": Format(JodieDecoder),
    "dyglib": Format(DyglibDecoder),
    "snap": Format(CsvDecoder, (".txt",), SNAP),
    "edges": Format(CsvDecoder, (".edges",), EDGES),
    "konect": Format(CsvDecoder, (), KONECT),
}
WRITABLE = ("csv", "tsv", "parquet", "arrow", "jsonl")
EXTENSIONS = {ending: name for name, each in FORMATS.items() for ending in each.endings}
"""Format of each file name ending; text formats may also end in .gz, .zst or .bz2."""


def file_path(source: str | os.PathLike[str]) -> Path:
    """Return the path of a file or folder; ValueError if it is a URL."""
    check_url(str(source))
    if "://" in str(source):
        raise ValueError(
            f"{str(source)!r} is not a path; mount an object store, or copy its files here first"
        )
    return Path(source)


def format_of(path: Path) -> str | None:
    """Return the format by the ending of `path`, or None."""
    endings = [suffix.lower() for suffix in path.suffixes]
    is_compressed = bool(endings) and endings[-1] in COMPRESSION
    endings = endings[:-1] if is_compressed else endings
    name = EXTENSIONS.get(endings[-1]) if endings else None
    if name is None or (is_compressed and not FORMATS[name].is_text):
        return "konect" if path.name.startswith("out.") else None
    return name


def decoder_for(
    path: Path,
    layout: TextLayout | None = None,
    max_bytes: int | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> Decoder:
    """Return the decoder of one file.

    Without a format the file name decides, for JODIE and DyGLib the columns, unless `layout` names
    one of them; a file with an unknown ending and a given layout is CSV.
    """
    layout = layout or TextLayout()
    format, given = layout.format, (layout.header, layout.columns, layout.sep, layout.comment)
    has_layout = any(each is not None for each in given)
    if format is not None and format not in FORMATS:
        raise ValueError(f"unknown format {format!r}; choose one of {', '.join(FORMATS)}")
    chosen = format or format_of(path) or ("csv" if has_layout else None)
    if chosen is None:
        endings = ", ".join((*EXTENSIONS, ".csv.gz", ".tsv.gz", ".jsonl.gz"))
        text = f"its name has no known ending (known: {endings}); pass format=..."
        raise StreamError(str(path), "schema", f"{text} ({', '.join(FORMATS)})")
    if format is None and chosen == "csv" and not has_layout:
        lines = [line.removeprefix(BOM) for line in head_of(path, 2)]
        header, row = (split_values(line, ",") for line in [*lines, b"", b""][:2])
        roles = {getattr(layout, role, None) for role in ("src", "dst", "t", "label")}
        if plain_names(header) == DYGLIB:
            chosen = "dyglib"
        elif is_jodie(header, row) and roles.isdisjoint(map(str.strip, header[:4])):
            chosen = "jodie"
    found = FORMATS[chosen]
    if found.dialect is not None:
        return found.decoder(path, max_bytes, block_bytes, found.dialect, layout)
    if has_layout:
        known = ", ".join(name for name, each in FORMATS.items() if each.dialect is not None)
        raise ValueError(
            f"header=, columns=, sep= and comment= are for delimited text ({known}), not {chosen}"
        )
    return found.decoder(path, max_bytes, block_bytes) if found.is_text else found.decoder(path)


def read_table(
    source: Any, texts: Sequence[str] = (), layout: TextLayout | None = None
) -> tuple[str, pa.Table]:
    """Read a whole table, such as one of nodes; return its name for messages, and the table.

    Args:
        source: Path of a CSV, TSV or JSON lines (also `.gz`, `.zst`, `.bz2`), Parquet or Arrow
            file; or an in-memory table, as for `open_stream`.
        texts: Columns of CSV and TSV read as text, such as ids: "007" is not 7.
        layout: Layout of delimited text; None: with a header, commas or tabs.
    """
    if isinstance(source, str | os.PathLike):
        name, table = str(source), _read_file(file_path(source), texts, layout or TextLayout())
    else:
        name, table = "table", as_table(source)
        if table is None:
            raise TypeError(
                f"cannot read a table from {type(source).__name__}; pass a path, a pyarrow "
                "table, a data frame with __arrow_c_stream__, or a dict of columns"
            )
    if not len(table):
        raise StreamError(name, "schema", "it has no rows")
    return name, table.combine_chunks()


def _read_file(path: Path, texts: Sequence[str], layout: TextLayout) -> pa.Table:
    if not path.exists():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    if path.is_fifo():
        text = "a table cannot be read from a named pipe; write it to a file first"
        raise StreamError(str(path), "schema", text)
    kind = format_of(path)
    given = {each.name: getattr(layout, each.name) for each in fields(TextLayout)}
    if given["format"] is not None and FORMATS[given["format"]].dialect is None:
        given["format"] = None
    if not any(each is not None for each in given.values()) and kind in ("csv", "tsv"):
        given["format"] = kind  # whatever its columns are
    layout = TextLayout(**given)
    is_delimited = kind is None or FORMATS[kind].dialect is not None
    try:
        if kind == "jsonl":
            return pa.json.read_json(pa.BufferReader(TextFile(path).read()))
        decoder = decoder_for(path, layout if is_delimited else None)
        if isinstance(decoder, CsvDecoder) and layout != TextLayout():
            return _delimited(*decoder.plain(), texts)
    except (pa.ArrowException, OSError) as error:
        raise StreamError(str(path), "syntax", f"it cannot be read: {error}") from None
    if not isinstance(decoder, ColumnarDecoder):
        known = "CSV, TSV, JSON lines, Parquet or Arrow"
        raise StreamError(str(path), "schema", f"a table of nodes is {known}, got {kind}")
    batches = [*decoder.batches(decoder.names(), BATCH_ROWS)]
    return pa.Table.from_batches(batches) if batches else pa.table({})


def _delimited(text: Text, delimiter: str, names: Sequence[str], texts: Sequence[str]) -> pa.Table:
    """Return delimited text, its columns `texts` and hexadecimal numbers as text."""
    check_quotes(text, Quotes(delimiter.encode(), ()))

    def parsed(some: Sequence[str]) -> pa.Table:
        types = dict.fromkeys(some, pa.string())
        return pa.csv.read_csv(
            pa.BufferReader(text),
            read_options=pa.csv.ReadOptions(column_names=names),
            parse_options=pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(column_types=types),
        )

    table = parsed(texts)
    if b"0x" not in text and b"0X" not in text:
        return table
    plain = parsed(table.column_names)
    is_hex = [pc.any(pc.match_substring(each, "0x", ignore_case=True)).as_py() for each in plain]
    return parsed([*texts, *(n for n, x in zip(table.column_names, is_hex, strict=True) if x)])
