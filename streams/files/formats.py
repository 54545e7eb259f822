"""The file formats, one decoder each, and which file name means which."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tgflow.streams.errors import StreamError
from tgflow.streams.files.arrays import NpzDecoder, TensorsDecoder
from tgflow.streams.files.arrow import ArrowDecoder
from tgflow.streams.files.blocks import BLOCK_BYTES, COMPRESSION
from tgflow.streams.files.csv import CsvDecoder
from tgflow.streams.files.decoder import Decoder
from tgflow.streams.files.dyglib import DyglibDecoder, is_dyglib
from tgflow.streams.files.headerless import EdgesDecoder, KonectDecoder, SnapDecoder
from tgflow.streams.files.jodie import JodieDecoder, is_jodie
from tgflow.streams.files.jsonl import JsonlDecoder
from tgflow.streams.files.laid_out import LaidOutDecoder
from tgflow.streams.files.layout import TextLayout
from tgflow.streams.files.parquet import ParquetDecoder

EXTENSIONS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "snap",
    ".edges": "edges",
    ".npz": "npz",
    ".pt": "pt",
}
"""What a file name's ending says about its format; text formats may end in .gz besides."""

WRITABLE = ("csv", "tsv", "parquet", "arrow", "jsonl")
FORMATS = (*WRITABLE, "jodie", "dyglib", "snap", "edges", "konect", "npz", "pt")
_TEXT = ("csv", "tsv", "jsonl", "snap", "edges")
_DELIMITERS = {"csv": ",", "tsv": "\t"}


_LISTS: Mapping[str, Callable[[Path, TextLayout, int | None, int], Decoder]] = {
    "snap": SnapDecoder,
    "edges": EdgesDecoder,
    "konect": KonectDecoder,
}
_OF_TEXT: Mapping[str, Callable[[Path, int | None, int], Decoder]] = {
    "jsonl": JsonlDecoder,
    "dyglib": DyglibDecoder,
}
_BINARY: Mapping[str, Callable[[Path], Decoder]] = {
    "parquet": ParquetDecoder,
    "arrow": ArrowDecoder,
    "npz": NpzDecoder,
    "pt": TensorsDecoder,
}


def format_of(path: Path) -> str | None:
    """Return the format that the name of `path` stands for, or None."""
    suffixes = [s.lower() for s in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSION:
        name = EXTENSIONS.get(suffixes[-2]) if len(suffixes) > 1 else None
        return name if name in _TEXT else _by_start(path)
    return (EXTENSIONS.get(suffixes[-1]) if suffixes else None) or _by_start(path)


def _by_start(path: Path) -> str | None:
    return "konect" if path.name.startswith("out.") else None


def decoder_for(
    path: Path,
    format: str | None,
    max_bytes: int | None = None,
    block_bytes: int = BLOCK_BYTES,
    layout: TextLayout | None = None,
) -> Decoder:
    """Return the decoder of one file.

    Args:
        path: The file.
        format: One of `FORMATS`, or None to go by the file's name, and by its header for JODIE's
            and DyGLib's.
        max_bytes: How much text it may hold if it is compressed, as for `TextFile`.
        block_bytes: How much text to parse at a time.
        layout: How it is laid out, if somebody says it; a file of no known ending is then CSV.

    Raises:
        StreamError: If the name has no known ending.
        ValueError: If `format` is unknown, or has no layout to be said.
    """
    layout = layout or TextLayout()
    if format is not None and format not in FORMATS:
        raise ValueError(f"unknown format {format!r}; choose one of {', '.join(FORMATS)}")
    chosen = format or format_of(path)
    if layout.is_said:
        return _laid_out(path, chosen or "csv", layout, max_bytes, block_bytes)
    if format is None and chosen == "csv":
        chosen = "jodie" if is_jodie(path) else "dyglib" if is_dyglib(path) else "csv"
    if chosen == "jodie":
        return JodieDecoder(path, ",", max_bytes, block_bytes)
    if chosen is not None and chosen in _LISTS:
        return _LISTS[chosen](path, layout, max_bytes, block_bytes)
    if chosen is not None and chosen in _OF_TEXT:
        return _OF_TEXT[chosen](path, max_bytes, block_bytes)
    if chosen in ("csv", "tsv"):
        return CsvDecoder(path, _DELIMITERS[chosen], max_bytes, block_bytes)
    if chosen is not None and chosen in _BINARY:
        return _BINARY[chosen](path)
    endings = ", ".join((*EXTENSIONS, ".csv.gz", ".tsv.gz", ".jsonl.gz"))
    text = (
        f"its name has no known ending (known: {endings}); pass format=... ({', '.join(FORMATS)})"
    )
    raise StreamError(str(path), "schema", text)


def _laid_out(
    path: Path, format: str, layout: TextLayout, max_bytes: int | None, block_bytes: int
) -> Decoder:
    if format in _LISTS:
        return _LISTS[format](path, layout, max_bytes, block_bytes)
    if format not in _DELIMITERS:
        known = ", ".join((*_DELIMITERS, *_LISTS))
        raise ValueError(
            f"header=, columns=, sep= and comment= are for delimited text ({known}), not {format}"
        )
    return LaidOutDecoder(path, layout, _DELIMITERS[format], max_bytes, block_bytes)
