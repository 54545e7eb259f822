"""The file formats, one decoder each, and which file name means which."""

from __future__ import annotations

from pathlib import Path

from tgflow.streams.errors import StreamError
from tgflow.streams.files.arrow import ArrowDecoder
from tgflow.streams.files.blocks import BLOCK_BYTES, COMPRESSION
from tgflow.streams.files.csv import CsvDecoder
from tgflow.streams.files.decoder import Decoder
from tgflow.streams.files.jodie import JodieDecoder, is_jodie
from tgflow.streams.files.jsonl import JsonlDecoder
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
}
"""What a file name's ending says about its format; text formats may end in .gz besides."""

FORMATS = ("csv", "tsv", "jodie", "parquet", "arrow", "jsonl")


def format_of(path: Path) -> str | None:
    """Return the format that the name of `path` tells, or None."""
    suffixes = [s.lower() for s in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSION:
        name = EXTENSIONS.get(suffixes[-2]) if len(suffixes) > 1 else None
        return name if name in ("csv", "tsv", "jsonl") else None
    return EXTENSIONS.get(suffixes[-1]) if suffixes else None


def decoder_for(
    path: Path,
    format: str | None,
    max_bytes: int | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> Decoder:
    """Return the decoder of one file.

    Args:
        path: The file.
        format: One of `FORMATS`, or None to go by the file's name, and by its header for JODIE's.
        max_bytes: How much text it may hold if it is compressed, as for `TextFile`.
        block_bytes: How much text to parse at a time.

    Raises:
        StreamError: If the name has no known ending.
        ValueError: If `format` is unknown.
    """
    if format is not None and format not in FORMATS:
        raise ValueError(f"unknown format {format!r}; choose one of {', '.join(FORMATS)}")
    chosen = format or format_of(path)
    if chosen == "jodie" or (format is None and chosen == "csv" and is_jodie(path)):
        return JodieDecoder(path, ",", max_bytes, block_bytes)
    if chosen in ("csv", "tsv"):
        delimiter = "\t" if chosen == "tsv" else ","
        return CsvDecoder(path, delimiter, max_bytes, block_bytes)
    if chosen == "jsonl":
        return JsonlDecoder(path, max_bytes, block_bytes)
    if chosen == "parquet":
        return ParquetDecoder(path)
    if chosen == "arrow":
        return ArrowDecoder(path)
    endings = ", ".join((*EXTENSIONS, ".csv.gz", ".tsv.gz", ".jsonl.gz"))
    text = (
        f"its name has no known ending (known: {endings}); pass format=... ({', '.join(FORMATS)})"
    )
    raise StreamError(str(path), "schema", text)
