"""Delimited text with comments, other separators, or without a header, as somebody says it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tgflow.streams.errors import StreamError, shown
from tgflow.streams.files.blocks import BLOCK_BYTES, Text, TextBlock
from tgflow.streams.files.csv import CsvDecoder, csv_parser, split_values
from tgflow.streams.files.layout import SPACE, TAB, UNREAD, TextLayout
from tgflow.streams.files.lines import Parser
from tgflow.streams.files.text import undecodable
from tgflow.streams.rows.limits import Checks
from tgflow.streams.rows.schema import Columns, IdKind, Scale, listed

MAX_COMMENTS = 10_000
"""Lines of comments at the head of a file."""
_SPACES = re.compile(rb"[ \t]+")


class LaidOutDecoder(CsvDecoder):
    """Delimited text as its layout says.

    Without a header and without names the columns are src, dst, t, and c3, c4, ... for what comes
    behind.

    Args:
        path: The file, compressed if its name says so.
        layout: What somebody has said.
        delimiter: What stands between two values where nobody says it.
        max_bytes: As for `TextDecoder`.
        block_bytes: As for `TextDecoder`.

    Raises:
        StreamError: If it begins with more than `MAX_COMMENTS` lines of comments, or its first row
            has not as many values as there are names.
    """

    has_header = True
    """Whether the first line names the columns where nobody says it."""
    comments: tuple[bytes, ...] = ()
    """What comments begin with where nobody says it."""
    blanks = b"\t"
    """What counts as a space where values stand between spaces."""

    def __init__(
        self,
        path: Path,
        layout: TextLayout,
        delimiter: str = ",",
        max_bytes: int | None = None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        found = {SPACE: " ", TAB: "\t", None: delimiter}.get(layout.sep, layout.sep)
        super().__init__(path, str(found), max_bytes, block_bytes)
        self._layout = layout
        if layout.sep == SPACE:
            self.blanks = b"\t"
        self._is_tidied = self._delimiter == " "
        if layout.comment is not None:
            self.comments = (layout.comment.encode(),)
        self.comment_starts = self.comments
        self.num_header_lines = 0
        self.head_comments = self._leading_comments()
        self._header = layout.has_header(self.has_header)
        self.num_header_lines = len(self.head_comments) + self._header
        self.first_place = f"{self.name}, line {self.num_header_lines + 1}"
        self._check_width()

    def names(self) -> Sequence[str] | None:  # type: ignore[override]
        """Return the names of the columns, None if there are neither rows nor names."""
        given = self._layout.names
        if given is not None:
            return [f"_{i}" if name == UNREAD else name for i, name in enumerate(given)]
        if self._header:
            return self.names_in(self._header_line(), self.num_header_lines)
        row = self._first_row()
        return None if row is None else self.names_of(len(row))

    def names_of(self, width: int) -> Sequence[str]:
        """Return what the columns of rows of `width` values are called if nobody says it."""
        return [*("src", "dst", "t")[:width], *(f"c{i}" for i in range(3, width))]

    def notes(self) -> Sequence[str]:
        """Return what was taken for granted, in sentences."""
        names = self.names()
        if self._header or self._layout.columns is not None or names is None:
            return ()
        return [f"no header: the columns are read as {listed(names)}; columns='...' names others"]

    def head(self) -> list[bytes]:
        """Return the first lines, tidy."""
        return [bytes(self._tidy(line)) for line in super().head()]

    def parser(self, columns: Columns, ids: IdKind, time: Scale, checks: Checks) -> Parser:
        """Return how lines become typed columns: as those of CSV, once they are tidy."""
        inner = csv_parser(self.names() or (), self._delimiter, columns, ids, time)
        if not self._is_tidied:
            return inner
        return replace(
            inner,
            parse=lambda block: inner.parse(self._tidy_block(block)),
            explain=lambda line: inner.explain(self._tidy(line)),
            is_hopeless=lambda line: inner.is_hopeless(self._tidy(line)),
            screen=lambda block: inner.screen(self._tidy_block(block)),
            suspect=lambda block: inner.suspect(self._tidy_block(block)),
        )

    def _header_line(self) -> bytes:
        lines = self.head()[len(self.head_comments) :]
        if not lines:
            raise StreamError(self.name, "schema", "the file is empty, expected a header line")
        return lines[0]

    def _first_row(self) -> list[str] | None:
        """Return the values of the first line that has some; none if no line has, None without."""
        lines = [x for x in self.head()[self.num_header_lines :] if not self._is_comment(x)]
        rows = (split_values(x, self._delimiter) for x in lines if undecodable(x) is None)
        return next(filter(None, rows), []) if lines else None

    def _check_width(self) -> None:
        """Refuse names that are not as many as the first row has values."""
        names, row = self._layout.names, self._first_row()
        if names is None or row is None or len(row) in (0, len(names)):
            return
        text = f"columns={','.join(names)!r} names {len(names)} columns"
        values = shown(self._delimiter.join(row))
        way_out = "write _ for each that is not read, or choose another sep=..."
        text = f"{text}, and the first row has {len(row)} values: {values}; {way_out}"
        raise StreamError(self.first_place, "schema", text)

    def _is_comment(self, line: bytes) -> bool:
        return line.startswith(self.comment_starts)

    def _leading_comments(self) -> list[bytes]:
        if not self.comment_starts:
            return []
        for num in (100, MAX_COMMENTS + 1):
            lines = self._file.head(num)
            count = next((i for i, x in enumerate(lines) if not self._is_comment(x)), None)
            if count is not None or len(lines) < num:
                return lines[:count]
        text = f"it begins with more than {MAX_COMMENTS:,} lines of comments"
        raise StreamError(self.name, "schema", f"{text}; is it a list of edges?")

    def _tidy(self, line: Text) -> Text:
        return tidy(line, self.blanks) if self._is_tidied else line

    def _tidy_block(self, block: TextBlock) -> TextBlock:
        return TextBlock(self._tidy(block.data), block.line, block.offset)


def tidy(lines: Text, blanks: bytes) -> Text:
    """Return lines with one space between two values, and none around them.

    Args:
        lines: The lines.
        blanks: Bytes that count as spaces.
    """
    found = lines.translate(bytes.maketrans(blanks, b" " * len(blanks)))
    if b"  " in found:
        found = _SPACES.sub(b" ", found)
    for wide, plain in ((b" \n", b"\n"), (b" \r\n", b"\r\n"), (b"\n ", b"\n")):
        if wide in found:
            found = found.replace(wide, plain)
    return found.strip(b" ")
