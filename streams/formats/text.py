"""What the text formats share: blocks of lines in, rows out, the first bad line explained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tgflow.streams.blocks import TextBlock, TextFile, parse_lines
from tgflow.streams.decoder import Rows
from tgflow.streams.errors import StreamError
from tgflow.streams.schema import Columns, IdKind, Scale

Parse = Callable[[bytes], pa.RecordBatch]
Explain = Callable[[bytes], tuple[str, str]]


class TextDecoder(ABC):
    """A text file with one event a line.

    Args:
        path: The file.
    """

    num_header_lines = 0

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.num_events: int | None = None
        self._file = TextFile(path)
        self.size = self._file.size
        self.first_place = f"{self.name}, line {self.num_header_lines + 1}"

    @abstractmethod
    def names(self) -> Sequence[str] | None:
        """Return the names of the columns, or None if there is no line."""

    @abstractmethod
    def first(self, columns: Columns) -> Mapping[str, Any] | None:
        """Return the first row, by column name, or None if there is no row."""

    @abstractmethod
    def parser(self, columns: Columns, ids: IdKind, time: Scale) -> tuple[Parse, Explain]:
        """Return how whole lines become rows, and what is wrong with a line that does not."""

    def default_features(self) -> Sequence[str]:
        """Return no features: they are read when asked for."""
        return ()

    def progress(self) -> float:
        """Return which share of the file's bytes the latest `read` has consumed."""
        return self._file.progress()

    def read(self, columns: Columns, ids: IdKind, time: Scale) -> Iterator[Rows]:
        """Yield the rows, block after block.

        Raises:
            StreamError: At the first line that is no row, after all rows before it.
        """
        parse, explain = self.parser(columns, ids, time)
        for block in self._body():
            for lines, batch in parse_lines(block, parse):
                if batch is None:
                    code, text = explain(lines.data)
                    raise StreamError(f"{self.name}, line {lines.line}", code, text)
                yield Rows(batch, self.name, lines.line, "line")

    def _body(self) -> Iterator[TextBlock]:
        """Yield the blocks without the header."""
        for block in self._file.blocks():
            skip = self.num_header_lines if block.line == 1 else 0
            body = block.without_head(skip)
            if body.data:
                yield body


def undecodable(line: bytes) -> tuple[str, str] | None:
    """Return the fault of a line that is not UTF-8 or is blank, None if it is neither."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        what = f"byte {error.start + 1} of the line (0x{line[error.start]:02x}) is not UTF-8"
        return "encoding", f"{what}; write the file as UTF-8"
    return None if text.strip() else ("syntax", "the line is blank; remove it")
