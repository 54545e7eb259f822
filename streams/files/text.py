"""Line-oriented text files: read blocks of lines, parse rows, and separate the bad lines."""

from __future__ import annotations

import re
import sys
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cache
from gzip import GzipFile
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tgflow.streams.errors import SourceCorrupt, SourceMismatch, SourceTruncated, StreamError
from tgflow.streams.files.decoder import (
    ANCHOR_BYTES,
    SAMPLES,
    Decoder,
    check_digest,
    check_size,
    digest,
)
from tgflow.streams.rows.row_batch import Fault, Int64s, Origin, Position, RowBatch
from tgflow.streams.rows.validate import RowSchema, may_be_tiny, validate

BLOCK_BYTES = 1 << 20
MAX_RATIO, ALWAYS_ALLOWED = 200, 1 << 30
COMPRESSION = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
BOM = b"\xef\xbb\xbf"
_PARSER_BYTES = 1 << 18
_FEW_LINES = 16
_PIECE_BYTES = 1 << 16
BLANK_LINE = "blank_line"
"""Name of skipped lines among `RowBatch.counts`."""
_IS_SPACE = np.isin(np.arange(256), [*b" \t\n\r\v\f"])


Text: TypeAlias = bytes | bytearray
QUOTE = ord('"')


@dataclass(frozen=True, slots=True)
class QuotedValues:
    """Offsets of quoted values; a doubled quote may divide a value in two."""

    starts: Int64s
    ends: Int64s
    is_sound: bool
    """Whether a separator, a line end or the end of the text follows each value."""
    is_open: bool
    """Whether the last value is not closed; it ends with the text."""

    def hold(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Return which offsets are within a quoted value."""
        number = np.searchsorted(self.starts, offsets, side="right")
        return (number > 0) & (offsets < np.append(0, self.ends)[number])


class Quotes:
    """Finds quoted values as Python's `csv` does.

    A quote at the start of a value opens it, and the next one that is not doubled closes it;
    other quotes are ordinary characters. Texts must begin with a row. Comment lines have no values.
    """

    def __init__(self, separators: bytes, comments: Sequence[bytes] = ()) -> None:
        self.comments = (*comments,)
        self._borders = b'\r\n"' + separators
        value = rb'"(?<![^%b\r\n]")((?:[^"]++|"")*+)("?)' % re.escape(separators)
        comment = b"|".join(map(re.escape, comments))
        none = np.empty(0, np.int64)
        self._latest: tuple[Text | None, QuotedValues] = None, QuotedValues(none, none, True, False)
        self._value = re.compile(value)
        self._value_or_comment = re.compile(rb"(?m)^(?:%b)[^\n]*+|%b" % (comment, value))

    def find(self, text: Text) -> QuotedValues:
        """Return the quoted values of a text, or of what was not cut off since `row_ends`."""
        known, found = self._latest
        if known is text:
            num = int(np.searchsorted(found.starts, len(text)))
            is_open = found.is_open and num == len(found.starts)
            return QuotedValues(found.starts[:num], found.ends[:num], True, is_open)
        data = np.frombuffer(text, dtype=np.uint8)
        quotes = np.flatnonzero(data == QUOTE)
        if self._has_comments(text):
            return self.find_each(text)
        opening, closing = quotes[::2], quotes[1::2]  # a doubled quote closes and opens
        ends = closing + 1
        opens = self._are_borders(data[opening - 1])
        opens[:1] |= opening[:1] == 0
        if not (opens.all() and self._are_borders(data.take(ends, mode="clip")).all()):
            return self.find_each(text)
        is_open = len(opening) > len(closing)
        ends = np.append(ends, len(data)) if is_open else ends
        return QuotedValues(opening, ends, True, is_open)

    def find_each(self, text: Text, start: int = 0) -> QuotedValues:
        """Return the quoted values from `start` on, without exceptions; slower than `find`."""
        pattern = self._value_or_comment if self._has_comments(text) else self._value
        found = [each for each in pattern.finditer(text, start) if each[1] is not None]
        starts, ends = np.array([each.span() for each in found], np.int64).reshape(-1, 2).T
        is_open = bool(found) and not found[-1][2]
        after = ends[ends < len(text)]
        is_sound = bool(self._are_borders(np.frombuffer(text, dtype=np.uint8)[after]).all())
        return QuotedValues(starts, ends, is_sound, is_open)

    def _are_borders(self, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = data == self._borders[0]
        for border in self._borders[1:]:  # 5x faster than a table
            found |= data == border
        return found

    def _has_comments(self, text: Text) -> bool:
        return any(text.startswith(each) or b"\n" + each in text for each in self.comments)

    def row_ends(self, text: Text, *, is_whole: bool = True) -> Int64s:
        """Return the offset after each row, including a last one without end if `is_whole`."""
        data = np.frombuffer(text, dtype=np.uint8)
        is_end = data == ord("\n")
        if b'"' in text:
            values = self.find(text)
            self._latest = (text if values.is_sound else None, values)
            ends = values.ends[data.take(values.ends, mode="clip") == ord("\n")]
            if values.is_open or len(ends) < np.count_nonzero(is_end):  # not all end in a quote
                ends = np.flatnonzero(is_end)
                ends = ends[~values.hold(ends)]
        else:
            ends = np.flatnonzero(is_end)
        ends += 1
        is_short = is_whole and len(text) > (ends[-1] if len(ends) else 0)
        return np.append(ends, len(text)) if is_short else ends

    def endless(self, text: Text, longest: int, is_last: bool, start: int = 0) -> int | None:
        """Return the offset of the first quote that is not closed within `longest` bytes.

        If the text `is_last` in its file, also of one that opens before its last line.
        """
        found = self.find_each(text, start)
        is_endless = found.ends - found.starts > longest
        if is_last and found.is_open:
            is_endless[-1] |= b"\n" in text[found.starts[-1] : -1]
        return int(found.starts[is_endless][0]) if is_endless.any() else None


def _line_ends(lines: Text) -> Int64s:
    """Return the offset after each line, including a last one without line end."""
    ends = np.flatnonzero(np.frombuffer(lines, dtype=np.uint8) == ord("\n")) + 1
    return ends if lines.endswith(b"\n") else np.append(ends, len(lines))


def count_lines(lines: Text) -> int:
    """Return the number of lines, including a last one without line end."""
    ends = np.frombuffer(lines, dtype=np.uint8) == ord("\n")  # 5x faster than bytes.count
    return int(np.count_nonzero(ends)) + (not lines.endswith(b"\n"))


class OpenQuote(StreamError):
    """Raised when a quoted value does not end: its rest would hide all rows that follow."""

    def __init__(self, name: str, line: int, longest: int) -> None:
        text = f"a quote opens here that is not closed within max_record_bytes={longest}"
        text += " or to the end of the file; close it, or raise the limit"
        super().__init__(f"{name}, line {line}", "syntax", text)


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Whole rows of a file, each a line unless line ends are quoted."""

    data: Text
    line: int
    offset: int
    num_rows: int
    left_out: int
    """Bytes left out of `data`; only for a single row that is too long to keep."""
    position: Position
    """Position after these rows."""
    before: bytes
    """The end of the text before these rows, for the anchors of positions within them."""
    row_ends: Int64s | None = None
    """Offset after each row; None: after each line."""

    def ends(self) -> Int64s:
        """Return the offset after each row."""
        return _line_ends(self.data) if self.row_ends is None else self.row_ends

    def pieces(self, num: int) -> Iterator[TextBlock]:
        """Yield the rows in about `num` blocks, each with its own position."""
        line, start = self.line, 0
        if self.left_out or num == 1:
            yield self
            return
        for cut in np.array_split(self.ends(), min(num, self.num_rows)):
            data, end = self.data[start : cut[-1]], int(cut[-1])
            before = (self.before + self.data[:start])[-ANCHOR_BYTES:]
            next_line = line + count_lines(data)
            position = self.position | {
                "byte": self.offset + end,
                "line": next_line,
                "sha256": digest(before + data),
            }
            at = self.offset + start
            yield TextBlock(data, line, at, len(cut), 0, position, before, cut - start)
            line, start = next_line, end


class TextFile:
    """Text of a file from a position on, decompressed if its name ends in one of `COMPRESSION`.

    Args:
        max_bytes: Maximum text bytes of a compressed file; None: `MAX_RATIO` times its own size, at
            least `ALWAYS_ALLOWED`.
        start: Position of a block; reading continues after it.
    """

    def __init__(
        self, path: Path, max_bytes: int | None = None, start: Mapping[str, Any] | None = None
    ) -> None:
        self.name, self.size = str(path), path.stat().st_size
        self._compression = compression = COMPRESSION.get(path.suffix) if self.size else None
        self._raw: Any = pa.OSFile(self.name)
        self._stream: Any = self._raw
        self._allowed: int | None = None
        if compression:
            self._stream = pa.CompressedInputStream(self._raw, compression)
            usual = max(ALWAYS_ALLOWED, MAX_RATIO * self.size)
            self._allowed = usual if max_bytes is None else max_bytes
        self._line, self._num_read, self._tail = 1, 0, b""
        if start is None:
            return
        check_size(self.name, self.size, start)
        end = start["byte"]
        if not compression:
            self._raw.seek(max(0, end - ANCHOR_BYTES))
            self._num_read = self._raw.tell()
        while self._num_read < end and (data := self._read(min(end - self._num_read, BLOCK_BYTES))):
            self._passed(data)
        if self._num_read < end:
            text = f"it ends after {self._num_read} bytes, but was read up to byte {end}"
            raise SourceTruncated(self.name, "schema", f"{text}; put the old file back")
        check_digest(self.name, self._tail, start, f"byte {end}")
        self._line = start["line"]

    def read(self) -> bytes:
        """Return the rest of the text, and close the file."""
        with closing(self._raw), closing(self._stream):
            return b"".join(iter(lambda: bytes(self._read(BLOCK_BYTES)), b""))

    def progress(self) -> float:
        """Return the share of the file's bytes read so far."""
        if not self.size:
            return 0.0
        return 1.0 if self._raw.closed else float(self._raw.tell() / self.size)

    def blocks(
        self,
        block_bytes: int,
        longest: int = BLOCK_BYTES,
        whole_lines: bool = False,
        quotes: Quotes | None = None,
    ) -> Iterator[TextBlock]:
        """Yield blocks of about `block_bytes`, and close the file.

        A row longer than `longest` that does not fit into a block is yielded alone, truncated to
        that length, so memory is bounded. With `whole_lines`, a last row without line end is left
        for later. With `quotes`, rows may have line ends in quoted values.

        Raises:
            OpenQuote: If a quote is not closed within `longest` bytes, or hides later lines up to
                the end of the file.
        """
        with closing(self._raw), closing(self._stream):
            offset, line = self._num_read, self._line
            buffer = self._read(max(block_bytes, len(BOM)))
            skipped = self._num_skipped(buffer)
            self._passed(buffer[:skipped])
            more, offset = bool(buffer), offset + skipped
            del buffer[:skipped]
            while more or buffer:
                is_last, ends = not (more or whole_lines), None
                if quotes is not None and b'"' in buffer:
                    ends = quotes.row_ends(buffer, is_whole=is_last)
                    ends = self._before_open_quote(buffer, ends, quotes, longest, line, is_last)
                    cut = int(ends[-1]) if len(ends) else 0
                else:
                    cut = len(buffer) if is_last else buffer.rfind(b"\n") + 1
                if not (cut or more):
                    return
                rest, left_out, before = buffer[cut:], 0, self._tail
                del buffer[cut:]
                num_lines = count_lines(buffer) if buffer else 0
                if buffer:
                    self._passed(buffer)
                elif len(rest) > longest:
                    buffer, left_out, num_lines, rest = self._long_row(
                        rest, longest, block_bytes, quotes, line
                    )
                    ends = np.array([len(buffer)])
                if buffer:
                    end = offset + len(buffer) + left_out
                    position: Position = {"byte": end, "line": line + num_lines}
                    position |= {"size": self.size, "sha256": digest(self._tail)}
                    num_rows = num_lines if ends is None else len(ends)
                    yield TextBlock(
                        buffer, line, offset, num_rows, left_out, position, before, ends
                    )
                    line, offset = line + num_lines, end
                size = block_bytes if buffer else max(block_bytes, len(rest))
                buffer = self._read(size, rest) if more else rest
                more = len(buffer) > len(rest)

    def _before_open_quote(
        self, rows: Text, ends: Int64s, quotes: Quotes, longest: int, line: int, is_last: bool
    ) -> Int64s:
        """Return the ends of the rows before the first open quote; raise OpenQuote in the first."""
        is_open = is_last and quotes.find(rows).is_open
        if len(rows) <= longest and not is_open:
            return ends
        starts = np.append(0, ends[:-1])
        doubtful = np.flatnonzero(ends - starts > longest).tolist()
        if is_open:
            doubtful.append(len(ends) - 1)
        for row in doubtful:
            text = rows[starts[row] : ends[row]]
            opened = quotes.endless(text, longest, is_last and row == len(ends) - 1)
            if opened is not None and row:
                return ends[:row]
            if opened is not None:
                raise OpenQuote(self.name, line + text.count(b"\n", 0, opened), longest)
        return ends

    def _long_row(
        self, start: bytearray, longest: int, block_bytes: int, quotes: Quotes | None, line: int
    ) -> tuple[bytearray, int, int, bytearray]:
        """Return the start of a long row, the bytes left out, its lines, and the data after it."""
        data, size, first, at, is_last = start, 0, line, 0, False
        if quotes is not None and start.startswith(quotes.comments):
            quotes = None
        while True:
            found = None if quotes is None or b'"' not in data else quotes.find_each(data, at)
            ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n")) + 1
            if found is not None:
                ends = ends[~found.hold(ends - 1)]
            end = int(ends[0]) if len(ends) else len(data)
            if found is not None and quotes is not None:
                opened = quotes.endless(data[:end], longest, is_last, at)
                if opened is not None:
                    raise OpenQuote(self.name, line + data.count(b"\n", 0, opened), longest)
            is_over = is_last or bool(len(ends))
            kept = end if is_over else len(data) - 1  # the last byte may be a separator
            if not is_over and found is not None and len(found.ends) and found.ends[-1] == end:
                kept = int(found.starts[-1])  # not closed, or the next quote doubles its last one
            self._passed(data[:kept])
            size, line, rest = size + kept, line + data.count(b"\n", 0, kept), data[kept:]
            if is_over:
                num_lines = line - first + (is_last and not data.endswith(b"\n"))
                return start[:longest], size - longest, num_lines, rest
            at = int(kept == len(data) - 1)
            data = self._read(max(block_bytes, len(rest)), rest)
            is_last = len(data) == len(rest)

    def _num_skipped(self, head: Text) -> int:
        """Return the length of the byte order mark or of the missing line end in `head`."""
        if not self._tail:
            return len(BOM) if head.startswith(BOM) else 0
        if not head or self._tail.endswith(b"\n"):
            return 0
        for end in (b"\n", b"\r\n"):
            if head.startswith(end):
                return len(end)
        text = "was read during a write, and has grown since; append whole lines only"
        raise SourceMismatch(f"{self.name}, line {self._line - 1}", "schema", f"the line {text}")

    def _read(self, size: int, before: Text = b"") -> bytearray:
        """Return `before` and up to `size` more bytes, fewer only at the end of the file."""
        start = len(before)
        buffer = bytearray(start + size)
        buffer[:start] = before
        try:
            with memoryview(buffer) as view:
                num_read = int(self._stream.readinto(view[start:]))
        except (OSError, EOFError, zlib.error) as error:
            if self._compression == "gzip" and not isinstance(self._stream, GzipFile):
                self._first_stream = self._stream  # which closes the file once it is freed
                self._raw.seek(0)
                self._stream = GzipFile(fileobj=self._raw)  # ignores padding, as gzip(1)
                try:
                    self._stream.seek(self._num_read)
                    return self._read(size, before)
                except (OSError, EOFError, zlib.error):
                    pass
            text = (
                f"the compressed data is damaged or cut short after {self._num_read} bytes of text "
                f"({error}); fetch the file again"
            )
            raise SourceCorrupt(self.name, "syntax", text) from error
        del buffer[start + num_read :]
        self._num_read += num_read
        if self._allowed is not None and self._num_read > self._allowed:
            text = f"the compressed data unpacks to more than {self._allowed:,} bytes; if it should"
            raise StreamError(self.name, "too_large", f"{text}, pass max_file_bytes='20GiB'")
        return buffer

    def _passed(self, data: Text) -> None:
        """Keep the end of the data yielded, for the anchor."""
        end = bytes(data[-ANCHOR_BYTES:])
        self._tail = end if len(end) == ANCHOR_BYTES else (self._tail + end)[-ANCHOR_BYTES:]


def head_of(
    path: Path,
    num_rows: int,
    num_bytes: int = sys.maxsize,
    max_bytes: int | None = None,
    quotes: Quotes | None = None,
    whole_lines: bool = False,
) -> list[bytes]:
    """Return the first rows of a file without line ends; stop after `num_bytes` of text."""
    rows: list[bytes] = []
    try:
        for block in TextFile(path, max_bytes).blocks(
            1 << 16, whole_lines=whole_lines, quotes=quotes
        ):
            ends = block.ends()[: num_rows - len(rows)].tolist()
            rows += (bytes(block.data[i:j]) for i, j in zip([0, *ends], ends, strict=False))
            num_bytes -= len(block.data)
            if num_bytes <= 0 or len(rows) == num_rows:
                break
    except OpenQuote:
        if not rows:
            raise
    return [row.removesuffix(b"\n").removesuffix(b"\r") for row in rows]


@dataclass(frozen=True, slots=True)
class Parser:
    """Parser of lines of one format, to one row per line; `validate` reads the same from all ways.

    Args:
        ways: Parse lines fast, the first one lines whose values have the usual types; raise
            `pa.ArrowInvalid` unless all lines are such rows.
        row: Returns the values of any line as texts, or lists of texts, and its fault, if any.
        schema: The columns of these values.
        finish: Completes a batch of them.
    """

    ways: Sequence[Callable[[Text, int], pa.RecordBatch]]
    row: Callable[[bytes], tuple[list[Any], Fault | None]]
    schema: pa.Schema
    finish: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda batch: batch

    def batch(self, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        """Return rows of texts as a batch."""
        columns = zip(*rows, strict=True) if rows else [()] * len(self.schema)
        arrays = map(pa.array, columns, self.schema.types)
        return self.finish(pa.RecordBatch.from_arrays([*arrays], schema=self.schema))

    def parsed(self, lines: Text, num_lines: int) -> pa.RecordBatch | None:
        """Return the rows of lines; None if no fast way parses all."""
        for way in self.ways if num_lines else ():
            with suppress(pa.ArrowInvalid):
                return way(lines, num_lines)
        return None


def parser_block(lines: Text, num_lines: int) -> int:
    """Return the block size for parsing lines: several blocks where Arrow may use threads."""
    # Arrow rejects a line that spans three blocks: a few lines are parsed in a single one
    return _PARSER_BYTES if num_lines > _FEW_LINES else len(lines) + 1


def refuse_tiny(
    text: Text, is_tiny: Callable[[Text], bool], ends_of: Callable[[Text], Int64s] = _line_ends
) -> None:
    """Raise `pa.ArrowInvalid` if a whole number has more decimals than Arrow can read."""
    if not may_be_tiny(text):
        return
    ends = ends_of(text).tolist()
    rows = (text[start:end] for start, end in zip([0, *ends], ends, strict=False))
    if any(map(is_tiny, filter(may_be_tiny, rows))):
        raise pa.ArrowInvalid("a number with too many decimals")


def parse_rows(
    lines: Text, ends: Int64s, parser: Parser, longest: int, left_out: int = 0
) -> tuple[list[pa.RecordBatch], Int64s | None, dict[int, Fault]]:
    """Return the rows, the number of each (None if all are rows), and the faults of the others.

    Rows are parsed in pieces, or else line by line.
    """
    starts = np.append(0, ends)[: len(ends)]
    sizes = ends - starts + left_out
    text = f"the line has {{:,}} bytes, more than max_record_bytes={longest}"
    too_large = np.flatnonzero(sizes > longest).tolist()
    faults: dict[int, Fault] = {row: ("too_large", text.format(sizes[row])) for row in too_large}
    batches, index = [], [np.empty(0, dtype=np.int64)]
    num_pieces = 1 + len(lines) // _PIECE_BYTES
    for piece in filter(len, np.array_split(np.flatnonzero(sizes <= longest), num_pieces)):
        batch, rows = parser.parsed(_selected(lines, ends, piece), len(piece)), piece
        if batch is None:
            there = ((row, bytes(lines[starts[row] : ends[row]])) for row in piece.tolist())
            found = {row: parser.row(line) for row, line in there}
            faults |= {row: fault for row, (_, fault) in found.items() if fault}
            good = {row: values for row, (values, fault) in found.items() if not fault}
            batch, rows = parser.batch([*good.values()]), np.array([*good], np.int64)
        batches.append(batch)
        index.append(rows)
    return batches or [parser.batch([])], np.concatenate(index) if faults else None, faults


def _selected(lines: Text, ends: Int64s, rows: Int64s) -> Text:
    if not len(rows):
        return b""
    starts = np.append(0, ends[:-1])
    if rows[-1] - rows[0] == len(rows) - 1:
        return lines[starts[rows[0]] : ends[rows[-1]]]
    is_taken = np.zeros(len(ends), dtype=np.bool_)
    is_taken[rows] = True
    return np.frombuffer(lines, dtype=np.uint8)[np.repeat(is_taken, ends - starts)].tobytes()


class TextDecoder(Decoder):
    """Base class of decoders for text files with one event per line."""

    comments: tuple[bytes, ...] = ()
    """Prefixes of comment lines."""
    quotes: Quotes | None = None
    """Finds quoted values, in formats in which they may have line ends."""
    whole_lines = False
    """Whether to leave a last line without line end unread, as the file may grow."""

    num_header_lines = 0
    """Number of rows before the first event: comments and the header."""

    def __init__(
        self, path: Path, max_bytes: int | None = None, block_bytes: int = BLOCK_BYTES
    ) -> None:
        super().__init__(str(path), path.stat().st_size, None, f"{path}, line 1")
        self._path, self._max_bytes, self._block_bytes = path, max_bytes, block_bytes
        self._file: TextFile | None = None
        self._head: list[bytes] | None = None

    @abstractmethod
    def parser(self, schema: RowSchema) -> Parser:
        """Return the parser of lines."""

    def head(self) -> list[bytes]:
        """Return the first lines, including the header; they are read once."""
        self._head = self.read_head() if self._head is None else self._head
        return self._head

    def read_head(self) -> list[bytes]:
        """Read the header and the lines used to detect columns and types."""
        num_lines = self.num_header_lines + (1 if self.is_growing else SAMPLES)
        return head_of(
            self._path,
            num_lines,
            max_bytes=self._max_bytes,
            quotes=self.quotes,
            whole_lines=self.whole_lines,
        )

    @property
    def first_line(self) -> int:
        """Line number of the first row after the header."""
        return 1 + sum(1 + row.count(b"\n") for row in self.head()[: self.num_header_lines])

    def let_grow(self) -> None:
        """Read whole lines only, and detect columns and types from the first row alone."""
        self._head = None
        self.is_growing = self.whole_lines = True

    def progress(self) -> float:
        return 0.0 if self._file is None else self._file.progress()

    def read(self, schema: RowSchema, start: Position | None) -> Iterator[RowBatch]:
        self._file = TextFile(self._path, self._max_bytes, start)
        blocks = self._file.blocks(
            self._block_bytes, schema.checks.max_bytes, self.whole_lines, self.quotes
        )
        return self._rows(blocks, self.parser(schema), schema)

    def _rows(
        self, blocks: Iterator[TextBlock], parser: Parser, schema: RowSchema
    ) -> Iterator[RowBatch]:
        """Yield the rows of each block together, or piece by piece if a line is blank or bad."""
        longest = schema.checks.max_bytes
        for block in blocks:
            rows, lines, num_rows = self._rows_among(block), block.data, block.num_rows
            largest = len(lines) + block.left_out
            if rows is not None or largest > longest:
                sizes = np.diff(block.ends(), prepend=0) + block.left_out
                if rows is not None:
                    lines, num_rows = _selected(lines, block.ends(), rows), len(rows)
                    sizes = sizes[rows]
                largest = sizes.max(initial=0)
            is_fine = largest <= longest and lines.strip()
            batch = parser.parsed(lines, num_rows) if is_fine else None
            if batch is not None:
                locate = self._locator(block, rows, longest)
                yield validate(batch, schema, locate=locate, position=block.position)
                continue
            for piece in block.pieces(1 + len(block.data.strip()) // _PIECE_BYTES):
                yield self._in_part(piece, parser, schema)

    def _in_part(self, block: TextBlock, parser: Parser, schema: RowSchema) -> RowBatch:
        """Return the rows of a block apart from its blank lines, which are counted."""
        longest, rows, blank = schema.checks.max_bytes, self._rows_among(block), 0
        rows = np.arange(block.num_rows) if rows is None else rows
        ends = block.ends()
        starts = np.append(0, ends[:-1])
        if not block.left_out:
            is_space = _IS_SPACE[np.frombuffer(block.data, dtype=np.uint8)]
            is_blank = np.logical_and.reduceat(is_space, starts)[rows]
            rows, blank = rows[~is_blank], int(np.count_nonzero(is_blank))
        lines, own_ends = _selected(block.data, ends, rows), np.cumsum((ends - starts)[rows])
        batches, index, faults = parse_rows(lines, own_ends, parser, longest, block.left_out)
        locate, position = self._locator(block, rows, longest), block.position
        found = validate(
            batches, schema, index=index, faults=faults, locate=locate, position=position
        )
        return replace(found, counts={**found.counts, BLANK_LINE: blank}) if blank else found

    def _rows_among(self, block: TextBlock) -> Int64s | None:
        """Return the numbers of rows other than header and comments; None if all are."""
        lines, starts_with, line = block.data, self.comments, block.line
        num_left = max(0, self.first_line - line)  # lines of the header
        has_comments = any(lines.startswith(x) or b"\n" + x in lines for x in starts_with)
        if not num_left and not has_comments:
            return None
        ends = block.ends()
        starts = np.append(0, ends[:-1])
        is_row = np.ones(len(starts), dtype=bool)
        if has_comments:
            is_row[:] = [not lines.startswith(starts_with, at) for at in starts.tolist()]
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            if num_left <= 0:
                break
            is_row[starts == start] = False
            num_left -= count_lines(lines[start:end])
        return np.flatnonzero(is_row)

    def _locator(
        self, block: TextBlock, rows: Int64s | None, longest: int
    ) -> Callable[[int], Origin]:
        """Return a function from row to origin; an oversized line is represented by its start."""
        ends = cache(block.ends)

        def locate(row: int) -> Origin:
            number = row if rows is None else int(rows[row])
            start, end = int(ends()[number - 1]) if number else 0, int(ends()[number])
            raw = bytes(block.data[start : min(end, start + longest)])
            line = number if block.row_ends is None else block.data.count(b"\n", 0, start)
            place = {"byte": block.offset + start, "line": block.line + line}
            return Origin({"file": self.name, **place}, raw.removesuffix(b"\n").removesuffix(b"\r"))

        return locate


_HALF = re.compile("[\ud800-\udfff]")


def is_unicode(text: str) -> bool:
    """Return whether a text has no half of a character: it can be written as UTF-8."""
    return _HALF.search(text) is None


def undecodable(line: Text) -> Fault | None:
    """Return the fault of a line that is blank or not plain UTF-8, None if it is neither."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        what = f"byte {error.start + 1} of the line (0x{line[error.start]:02x}) is not UTF-8"
        return "encoding", f"{what}; write the file as UTF-8"
    if line.startswith(BOM):
        return "encoding", "the line starts with a byte order mark; remove it"
    return None if text.strip() else ("syntax", "the line is blank; remove it")
