"""Text without a header: the lists of edges of SNAP and of KONECT, as they are published."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tgflow.streams.errors import StreamError
from tgflow.streams.files.blocks import BLOCK_BYTES, Text, TextBlock
from tgflow.streams.files.csv import CsvDecoder, csv_parser, split_values
from tgflow.streams.files.lines import Parser
from tgflow.streams.rows.limits import Checks
from tgflow.streams.rows.schema import Columns, IdKind, Scale

MAX_COMMENTS = 10_000
"""Lines of comments at the head of a file."""
_COMMENTS = (b"#", b"%")
_SPACES = re.compile(rb"[ \t]+")


class SnapDecoder(CsvDecoder):
    """SNAP's temporal networks: values between spaces, tabs or commas; comments come first.

    The columns are src, dst, t, and c3, c4, ... for what comes behind.

    Args:
        path: The file, compressed if its name says so.
        max_bytes: As for `TextDecoder`.
        block_bytes: As for `TextDecoder`.

    Raises:
        StreamError: If it begins with more than `MAX_COMMENTS` lines of comments.
    """

    def __init__(
        self, path: Path, max_bytes: int | None = None, block_bytes: int = BLOCK_BYTES
    ) -> None:
        super().__init__(path, " ", max_bytes, block_bytes)
        self.num_header_lines = 0
        self.comments = self._leading_comments()
        self.num_header_lines = len(self.comments)
        self.first_place = f"{self.name}, line {self.num_header_lines + 1}"

    def names(self) -> Sequence[str] | None:  # type: ignore[override]
        """Return the names of the columns, as many as the first row has values; None without."""
        rows = self.head()[self.num_header_lines :]
        return self.names_of(len(split_values(rows[0], " "))) if rows else None

    def names_of(self, width: int) -> Sequence[str]:
        """Return what the columns of rows of `width` values are called."""
        return [*("src", "dst", "t")[:width], *(f"c{i}" for i in range(3, width))]

    def head(self) -> list[bytes]:
        """Return the first lines, comments among them."""
        return [bytes(tidy(line)) for line in super().head()]

    def parser(self, columns: Columns, ids: IdKind, time: Scale, checks: Checks) -> Parser:
        """Return how lines become typed columns: as those of CSV, once they are tidy."""
        inner = csv_parser(self.names() or (), " ", columns, ids, time)
        return replace(
            inner,
            parse=lambda block: inner.parse(_tidy_block(block)),
            explain=lambda line: inner.explain(tidy(line)),
            is_hopeless=lambda line: inner.is_hopeless(tidy(line)),
            screen=lambda block: inner.screen(_tidy_block(block)),
            suspect=lambda block: inner.suspect(_tidy_block(block)),
        )

    def _leading_comments(self) -> list[bytes]:
        for num in (100, MAX_COMMENTS + 1):
            lines = self._file.head(num)
            count = next((i for i, x in enumerate(lines) if not x.startswith(_COMMENTS)), None)
            if count is not None or len(lines) < num:
                return lines[:count]
        text = f"it begins with more than {MAX_COMMENTS:,} lines of comments"
        raise StreamError(self.name, "schema", f"{text}; is it a list of edges?")


class KonectDecoder(SnapDecoder):
    """KONECT's `out.NAME`: src, dst, weight and t; its first comment says whether it is bipartite.

    A list without times lacks the column t, which every stream needs.

    Args:
        path: The file, compressed if its name says so.
        max_bytes: As for `TextDecoder`.
        block_bytes: As for `TextDecoder`.

    Raises:
        StreamError: As `SnapDecoder`.
    """

    def __init__(
        self, path: Path, max_bytes: int | None = None, block_bytes: int = BLOCK_BYTES
    ) -> None:
        super().__init__(path, max_bytes, block_bytes)
        self.bipartite = bool(self.comments) and b"bip" in self.comments[0].split()

    def names_of(self, width: int) -> Sequence[str]:
        """Return what the columns of rows of `width` values are called."""
        return [*("src", "dst", "weight", "t")[:width], *(f"c{i}" for i in range(4, width))]


def tidy(lines: Text) -> Text:
    """Return lines with one space between two values, and none around them."""
    found = lines.translate(_TO_SPACES)
    if b"  " in found:
        found = _SPACES.sub(b" ", found)
    for wide, plain in ((b" \n", b"\n"), (b" \r\n", b"\r\n"), (b"\n ", b"\n")):
        if wide in found:
            found = found.replace(wide, plain)
    return found.strip(b" ")


_TO_SPACES = bytes.maketrans(b"\t,", b"  ")


def _tidy_block(block: TextBlock) -> TextBlock:
    return TextBlock(tidy(block.data), block.line, block.offset)
