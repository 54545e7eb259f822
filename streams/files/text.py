"""What the text formats share: blocks of lines in, rows out, bad lines apart from good ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tgflow.streams.errors import RowFault, shown
from tgflow.streams.files.blocks import BLOCK_BYTES, BOM, Text, TextBlock, TextFile
from tgflow.streams.files.lines import Parser, parse_lines
from tgflow.streams.rows.checks import Fault, Int64s
from tgflow.streams.rows.limits import Checks
from tgflow.streams.rows.row_batch import Origin, Position, RowBatch
from tgflow.streams.rows.schema import Columns, IdKind, Scale
from tgflow.streams.rows.validate import RowSchema, validate

SAMPLES = 100


class TextDecoder(ABC):
    """A text file with one event a line.

    Args:
        path: The file.
        max_bytes: How much text it may hold if it is compressed, as for `TextFile`.
        block_bytes: How much to parse at a time.
    """

    num_header_lines = 0
    bipartite = False
    comment_starts: tuple[bytes, ...] = ()
    """What lines begin with that are no rows."""

    def __init__(
        self, path: Path, max_bytes: int | None = None, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self.name = str(path)
        self.num_events: int | None = None
        self._file = TextFile(path, max_bytes)
        self._block_bytes = block_bytes
        self._head: list[bytes] | None = None
        self._num_samples = SAMPLES
        self.is_growing = False
        self.size = self._file.size
        self.first_place = f"{self.name}, line {self.num_header_lines + 1}"

    @abstractmethod
    def names(self) -> Sequence[str] | None:
        """Return the names of the columns, or None if there is no line."""

    @abstractmethod
    def samples(self, columns: Columns) -> Sequence[Mapping[str, Any]]:
        """Return some of the first rows, by column name, without those that cannot be read."""

    @abstractmethod
    def parser(self, columns: Columns, ids: IdKind, time: Scale, checks: Checks) -> Parser:
        """Return how lines become rows."""

    def head(self) -> list[bytes]:
        """Return the first lines, the header among them; they are read once."""
        if self._head is None:
            self._head = self._file.head(self._num_samples + self.num_header_lines)
        return self._head

    def let_grow(self) -> None:
        """Read whole lines only, and learn what there is to learn from the first row alone."""
        self._num_samples, self._head = 1, None
        self.is_growing = self._file.whole_lines = True

    def complete(self) -> None:
        """Also read a last line without its end: nothing more will come."""
        self._file.whole_lines = False

    def default_features(self) -> Sequence[str]:
        """Return no features: they are read when asked for."""
        return ()

    def notes(self) -> Sequence[str]:
        """Return what was taken for granted, in sentences: nothing."""
        return ()

    def progress(self) -> float:
        """Return which share of the file's bytes the latest `read` has consumed."""
        return self._file.progress()

    def read(self, schema: RowSchema, start: Position | None) -> Iterator[RowBatch]:
        """Return the rows, block after block, from line `start` on."""
        blocks = self._file.blocks(self._block_bytes, start, schema.checks.max_bytes)
        parser = self.parser(schema.columns, schema.ids, schema.time, schema.checks)
        return self._rows(blocks, parser, schema)

    def _rows(
        self, blocks: Iterator[TextBlock], parser: Parser, schema: RowSchema
    ) -> Iterator[RowBatch]:
        longest = schema.checks.max_bytes
        for block in blocks:
            position = self._file.position(block)
            body = block.without_head(max(0, self.num_header_lines + 1 - block.line))
            places = _Lines(self.name, body, longest)
            rows = _rows_among(body, self.comment_starts)
            lines = body if rows is None else body.taken(rows)
            if lines.data:
                parsed = parse_block(lines, parser, longest)
                yield validate(
                    parsed.batch,
                    schema,
                    index=parsed.index,
                    faults=parsed.faults,
                    locate=places.origin if rows is None else partial(_of_rows, places, rows),
                    position=position,
                )


@dataclass(frozen=True, slots=True)
class ParsedBlock:
    """The rows of a block, one a line.

    Args:
        batch: The lines that are rows.
        index: Of each of them its number in the block, increasing; None if all are rows.
        faults: What is wrong with the others, by number.
    """

    batch: pa.RecordBatch
    index: Int64s | None
    faults: Sequence[RowFault]


def parse_block(block: TextBlock, parser: Parser, longest: int) -> ParsedBlock:
    """Return the rows of a block; a line of more than `longest` bytes is not looked at."""
    batches, numbers = [], []
    faults = []
    ends: list[int] = []
    for piece in _with_long_lines_alone(block, longest):
        if piece.left_out or (len(piece.data) > longest and piece.num_lines == 1):
            size = len(piece.data) + piece.left_out
            text = f"the line has {size:,} bytes, more than max_record_bytes={longest}"
            faults.append(RowFault(piece.line - block.line, "too_large", text))
            continue
        for found, batch in parse_lines(piece, parser):
            rows = found + (piece.line - block.line)
            if batch is None:
                ends = ends or [0, *block.line_ends().tolist()]
                line = bytes(block.data[ends[rows[0]] : ends[rows[0] + 1]])
                faults.append(RowFault(int(rows[0]), *_fault(line, parser)))
            else:
                batches.append(batch)
                numbers.append(rows)
    batch = _concat(batches, parser.schema)
    index = np.concatenate(numbers) if numbers else np.empty(0, dtype=np.int64)
    if len(numbers) > 1 and (np.diff(index) < 0).any():
        order = np.argsort(index)
        batch, index = batch.take(pa.array(order)), index[order]
    faults.sort(key=lambda fault: fault.row)
    return ParsedBlock(batch, index if faults else None, faults)


def _concat(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches, schema).combine_chunks()
    return next(iter(table.to_batches()), pa.RecordBatch.from_pylist([], schema))


def _fault(line: bytes, parser: Parser) -> Fault:
    what = shown(line.decode(errors="replace").rstrip("\r\n"))
    return parser.explain(line) or ("syntax", f"the line is no row of {parser.columns}: {what}")


def _with_long_lines_alone(block: TextBlock, longest: int) -> Iterator[TextBlock]:
    """Yield a block cut so that each line of more than `longest` bytes comes alone."""
    data, line, done, at = block.data, block.line, 0, 0
    while len(data) - at > longest:
        end = data.rfind(b"\n", at, at + longest) + 1
        if end:  # all lines before it are short enough
            at = end
            continue
        if at > done:
            short = TextBlock(data[done:at], line, block.offset + done)
            yield short
            line += short.num_lines
        end = data.find(b"\n", at) + 1 or len(data)
        yield TextBlock(data[at:end], line, block.offset + at)
        line, done, at = line + 1, end, end
    if done == 0:
        yield block
    elif done < len(data):
        yield TextBlock(data[done:], line, block.offset + done)


def _rows_among(block: TextBlock, comments: tuple[bytes, ...]) -> Int64s | None:
    """Return the numbers of lines that are no comments; None if all are none."""
    data = block.data
    if not any(data.startswith(start) or b"\n" + start in data for start in comments):
        return None
    starts = np.concatenate(([0], block.line_ends()[:-1]))
    is_comment = [data.startswith(comments, start) for start in starts.tolist()]
    return np.flatnonzero(~np.array(is_comment))


def _of_rows(places: _Lines, rows: Int64s, row: int) -> Origin:
    return places.origin(int(rows[row]))


class _Lines:
    """The lines of a block as places; of one that is too long its start stands for its bytes."""

    def __init__(self, name: str, block: TextBlock, longest: int) -> None:
        self._name = name
        self._block = block
        self._longest = longest
        self._ends: Int64s | None = None

    def origin(self, row: int) -> Origin:
        byte, line = self._block.offset + self._span(row)[0], self._block.line + row
        raw = self.data(row)[: self._longest].removesuffix(b"\n").removesuffix(b"\r")
        return Origin({"file": self._name, "byte": byte, "line": line}, raw)

    def data(self, row: int) -> bytes:
        """Return a line with its line end."""
        start, end = self._span(row)
        return bytes(self._block.data[start:end])

    def _span(self, row: int) -> tuple[int, int]:
        if self._ends is None:
            ends = np.flatnonzero(np.frombuffer(self._block.data, dtype=np.uint8) == ord("\n"))
            self._ends = np.concatenate(([0], ends + 1, [len(self._block.data)]))
        return int(self._ends[row]), int(self._ends[row + 1])


def undecodable(line: Text) -> Fault | None:
    """Return the fault of a line that is no plain UTF-8 or is blank, None if it is neither."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        what = f"byte {error.start + 1} of the line (0x{line[error.start]:02x}) is not UTF-8"
        return "encoding", f"{what}; write the file as UTF-8"
    if line.startswith(BOM):
        return "encoding", "the line starts with a byte order mark; remove it"
    return None if text.strip() else ("syntax", "the line is blank; remove it")
