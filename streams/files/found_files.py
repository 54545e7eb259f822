"""From a path, paths, stdin or a table to the files that are read."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

from tgflow.streams.files.blocks import COMPRESSION
from tgflow.streams.files.decoder import Decoder
from tgflow.streams.files.file_list import Files, Folder
from tgflow.streams.files.formats import EXTENSIONS, FORMATS, decoder_for, format_of
from tgflow.streams.files.growth import FileTail, Growth, Spool, wait_for_rows
from tgflow.streams.files.headerless import SnapDecoder
from tgflow.streams.files.layout import TextLayout
from tgflow.streams.files.table import TableDecoder, as_table
from tgflow.streams.files.text import TextDecoder

STDIN = "-"
_BINARY = ("parquet", "arrow", "npz", "pt")
OpenFile = Callable[[Path], Decoder]


def find_files(
    source: Any,
    format: str | None,
    layout: TextLayout,
    max_bytes: int | None,
    block_bytes: int,
    *,
    follow: bool = False,
) -> Files:
    """Return the files of a source.

    Args:
        source: A path, "-" for stdin, a list of paths, or a table.
        format: As for `decoder_for`, and so are the next ones.
        layout: How delimited text is laid out.
        max_bytes: How much text a compressed file may hold.
        block_bytes: How much text to parse at a time.
        follow: Whether the files may grow, so that reading never ends.

    Raises:
        FileNotFoundError: If there is no such file or folder.
        StreamError: If a file is of no known format.
        TypeError: If the source is none.
        ValueError: If what cannot grow is to be followed.
    """
    open_file = partial(
        decoder_for, format=format, max_bytes=max_bytes, block_bytes=block_bytes, layout=layout
    )
    comments = SnapDecoder.comments + ((layout.comment.encode(),) if layout.comment else ())
    growth = FileTail() if follow else None
    if _is_path(source) and str(source) == STDIN:
        return _of_stdin(open_file, format, comments)
    if _is_path(source):
        path = Path(source)
        if not path.exists():
            raise FileNotFoundError(f"there is no file or folder {str(path)!r}")
        if path.is_dir():
            return Folder(path, open_file, growth)
        return _of_paths([path], open_file, growth, comments)
    if isinstance(source, Sequence) and source and all(map(_is_path, source)):
        return _of_paths([Path(path) for path in source], open_file, growth, comments)
    table = as_table(source)
    if table is None:
        raise TypeError(
            f"cannot read events from a {type(source).__name__}; pass a path "
            f"({', '.join(FORMATS)}), a pyarrow table, a data frame with __arrow_c_stream__, "
            "a dict or tuple of columns, or an iterable of dicts"
        )
    if follow:
        raise ValueError("follow=True is for files and folders; a table does not grow")
    features = ("x",) if isinstance(source, tuple) and len(source) == 4 else ()
    return Files([TableDecoder(table, features)], ["table"])


def _is_path(source: object) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(source, str | os.PathLike)


def _of_paths(
    paths: Sequence[Path], open_file: OpenFile, growth: Growth | None, comments: tuple[bytes, ...]
) -> Files:
    last = paths[-1]
    if growth is not None and (last.suffix in COMPRESSION or format_of(last) in _BINARY):
        raise ValueError(
            "follow=True is for text files that are not compressed, and for folders that files "
            f"are moved to; {last} is neither"
        )
    if growth is not None:
        wait_for_rows(last, growth, comments)
    decoders = [open_file(path) for path in paths]
    if growth is not None:
        _let_grow(decoders[-1])
    return Files(decoders, [path.name for path in paths], growth)


def _of_stdin(open_file: OpenFile, format: str | None, comments: tuple[bytes, ...]) -> Files:
    """Return what comes by stdin, as CSV where nobody says a format."""
    ending = next((end for end, name in EXTENSIONS.items() if name == format), ".csv")
    spool = Spool(sys.stdin.buffer, f"stdin{ending}")
    wait_for_rows(spool.path, spool, comments)
    if format in _BINARY:
        spool.join()
    decoder = open_file(spool.path)
    decoder.name, path = "stdin", decoder.name
    decoder.first_place = decoder.first_place.replace(path, decoder.name)
    _let_grow(decoder)
    return Files([decoder], [STDIN], spool)


def _let_grow(decoder: Decoder) -> None:
    if isinstance(decoder, TextDecoder):
        decoder.let_grow()
