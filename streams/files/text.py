"""Line-oriented text files: read blocks of lines, parse rows, and separate the bad lines."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tgflow.streams.errors import (
    RowFault,
    SourceCorrupt,
    SourceMismatch,
    SourceTruncated,
    StreamError,
    shown,
)
from tgflow.streams.files.decoder import (
    ANCHOR_BYTES,
    SAMPLES,
    Decoder,
    check_digest,
    check_size,
    digest,
    most_unpacked,
    too_much,
)
from tgflow.streams.files.urls import FilePath, UrlPath
from tgflow.streams.rows.row_batch import Fault, Int64s, Origin, Position, RowBatch
from tgflow.streams.rows.validate import RowSchema, may_be_tiny, validate

BLOCK_BYTES = 1 << 20
COMPRESSION = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
BOM = b"\xef\xbb\xbf"
_PARSER_BYTES = 1 << 18
_FEW_LINES = 16
_NUM_PIECES = 16
BLANK_LINE = "blank_line"
"""Name of skipped lines among `RowBatch.counts`."""
_IS_SPACE = np.isin(np.arange(256), [*b" \t\n\r\v\f"])

Text: TypeAlias = bytes | bytearray


def _line_ends(lines: Text) -> Int64s:
    """Return the offset after each line, including a last one without line end."""
    ends = np.flatnonzero(np.frombuffer(lines, dtype=np.uint8) == ord("\n")) + 1
    return ends if lines.endswith(b"\n") else np.append(ends, len(lines))


def _count_lines(lines: Text) -> int:
    """Return the number of lines, including a last one without line end."""
    ends = np.frombuffer(lines, dtype=np.uint8) == ord("\n")  # 5x faster than bytes.count
    return int(np.count_nonzero(ends)) + (not lines.endswith(b"\n"))


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Whole lines of a file."""

    data: Text
    line: int
    offset: int
    num_lines: int
    left_out: int
    """Bytes left out of `data`; only for a single line that is too long to keep."""
    position: Position
    """Position after these lines."""
    before: bytes
    """The end of the text before these lines, for the anchors of positions within them."""

    def pieces(self, num: int) -> Iterator[TextBlock]:
        """Yield the lines in about `num` blocks, each with its own position."""
        ends = _line_ends(self.data)
        line, start = self.line, 0
        if self.left_out or num == 1:
            yield self
            return
        for cut in np.array_split(ends, min(num, len(ends))):
            data, end = self.data[start : cut[-1]], int(cut[-1])
            before = (self.before + self.data[:start])[-ANCHOR_BYTES:]
            position = self.position | {
                "byte": self.offset + end,
                "line": line + len(cut),
                "sha256": digest(before + data),
            }
            yield TextBlock(data, line, self.offset + start, len(cut), 0, position, before)
            line, start = line + len(cut), end


class TextFile:
    """Text of a file from a position on, decompressed if its name ends in one of `COMPRESSION`.

    Args:
        path: The file.
        max_bytes: Maximum text bytes of a compressed file; None: as `most_unpacked`.
        start: Position of a block; reading continues after it.

    Raises:
        SourceTruncated: If the file ends before `start`.
        SourceMismatch: If the data before `start` has changed.
    """

    def __init__(
        self, path: FilePath, max_bytes: int | None = None, start: Mapping[str, Any] | None = None
    ) -> None:
        self.name, self.size = str(path), path.stat().st_size
        compression = COMPRESSION.get(path.suffix) if self.size else None
        self._raw: Any = (
            pa.PythonFile(path.open(), "r") if isinstance(path, UrlPath) else pa.OSFile(self.name)
        )
        self._stream: Any = self._raw
        self._allowed: int | None = None
        if compression:
            self._stream = pa.CompressedInputStream(self._raw, compression)
            self._allowed = most_unpacked(self.size, max_bytes)
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

    def progress(self) -> float:
        """Return the share of the file's bytes read so far."""
        if not self.size:
            return 0.0
        return 1.0 if self._raw.closed else float(self._raw.tell() / self.size)

    def blocks(
        self, block_bytes: int, longest: int = BLOCK_BYTES, whole_lines: bool = False
    ) -> Iterator[TextBlock]:
        """Yield blocks of about `block_bytes`, and close the file.

        A line longer than `longest` that does not fit into a block is yielded alone, truncated to
        that length, so memory is bounded. With `whole_lines`, a last line without line end is left
        for later.
        """
        with closing(self._raw), closing(self._stream):
            offset, line = self._num_read, self._line
            buffer = self._read(max(block_bytes, len(BOM)))
            skipped = self._num_skipped(buffer)
            self._passed(buffer[:skipped])
            more, offset = bool(buffer), offset + skipped
            del buffer[:skipped]
            while more or buffer:
                cut = buffer.rfind(b"\n") + 1 if more or whole_lines else len(buffer)
                if not (cut or more):
                    return
                rest, left_out, before = buffer[cut:], 0, self._tail
                del buffer[cut:]
                if buffer:
                    self._passed(buffer)
                elif len(rest) > longest:
                    buffer, left_out, rest = self._long_line(rest, longest, block_bytes)
                if buffer:
                    num_lines = 1 if left_out else _count_lines(buffer)
                    end = offset + len(buffer) + left_out
                    position: Position = {"byte": end, "line": line + num_lines}
                    position |= {"size": self.size, "sha256": digest(self._tail)}
                    yield TextBlock(buffer, line, offset, num_lines, left_out, position, before)
                    line, offset = line + num_lines, end
                buffer = self._read(block_bytes, rest) if more else rest
                more = len(buffer) > len(rest)

    def _long_line(
        self, start: bytearray, longest: int, block_bytes: int
    ) -> tuple[bytearray, int, bytearray]:
        """Return the start of a long line, the number of bytes left out, and the data after it."""
        size, rest = len(start), bytearray()
        self._passed(start)
        while data := self._read(block_bytes):
            end = data.find(b"\n") + 1 or len(data)
            self._passed(data[:end])
            size += end
            rest = data[end:]
            if data[end - 1] == ord("\n"):
                break
        return start[:longest], size - longest, rest

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
        except OSError as error:
            text = (
                f"the compressed data is damaged or cut short after {self._num_read} bytes of text "
                f"({error}); fetch the file again"
            )
            raise SourceCorrupt(self.name, "syntax", text) from error
        del buffer[start + num_read :]
        self._num_read += num_read
        if self._allowed is not None and self._num_read > self._allowed:
            raise StreamError(self.name, "too_large", too_much(self._allowed))
        return buffer

    def _passed(self, data: Text) -> None:
        """Keep the end of the data yielded, for the anchor."""
        end = bytes(data[-ANCHOR_BYTES:])
        self._tail = end if len(end) == ANCHOR_BYTES else (self._tail + end)[-ANCHOR_BYTES:]


def head_of(
    path: FilePath, num_lines: int, num_bytes: int | None = None, max_bytes: int | None = None
) -> list[bytes]:
    """Return the first lines of a file without line ends; stop after `num_bytes` of text."""
    data = b""
    for block in TextFile(path, max_bytes).blocks(1 << 16):
        data += block.data
        is_enough = num_bytes is not None and len(data) >= num_bytes
        if is_enough or block.line + block.num_lines > num_lines:
            break
    return [line.rstrip(b"\r\n") for line in islice(data.splitlines(keepends=True), num_lines)]


@dataclass(frozen=True, slots=True)
class Parser:
    """Parser of lines of one format, to one row per line.

    Both ways raise `pa.ArrowInvalid` unless all lines are rows, and `validate` reads the same
    values from both.

    Args:
        typed: Parses lines whose values have the usual types; fast.
        texts: Parses any rows to columns of texts, or of lists of texts.
        explain: Returns the fault of a line that is not a row, None if there is none.
        schema: The columns of `texts`.
        columns: Their names in messages.
    """

    typed: Callable[[Text, int], pa.RecordBatch]
    texts: Callable[[Text, int], pa.RecordBatch]
    explain: Callable[[Text], Fault | None]
    schema: pa.Schema
    columns: str


def parser_block(lines: Text, num_lines: int) -> int:
    """Return the block size for parsing lines: several blocks where Arrow may use threads.

    Arrow rejects a line that spans three of its blocks, so a small number of lines is parsed in a
    single block.
    """
    return _PARSER_BYTES if num_lines > _FEW_LINES else len(lines) + 1


def refuse_tiny(lines: Text, is_tiny: Callable[[Text], bool]) -> None:
    """Raise `pa.ArrowInvalid` if a whole number has more decimals than Arrow can read."""
    if may_be_tiny(lines) and any(map(is_tiny, filter(may_be_tiny, lines.splitlines()))):
        raise pa.ArrowInvalid("a number with too many decimals")


def parse_lines(
    lines: Text, num_lines: int, parser: Parser, longest: int, left_out: int = 0
) -> tuple[list[pa.RecordBatch], Int64s | None, list[RowFault]]:
    """Return the rows, the line number of each (None if all lines are rows), and the faults.

    Lines are parsed in 16 chunks: as typed values, or else as texts. Of a chunk with lines that are
    no rows, suspicious lines are parsed individually, and the others together.
    """
    batches = [pa.RecordBatch.from_pylist([], parser.schema)]
    if not num_lines:
        return batches, None, []
    ends = _line_ends(lines)
    starts = np.append(0, ends[:-1])
    sizes = ends - starts + left_out
    fits = sizes <= longest
    faults: dict[int, Fault] = {}
    for row in np.flatnonzero(~fits).tolist():
        text = f"the line has {sizes[row]:,} bytes, more than max_record_bytes={longest}"
        faults[row] = "too_large", text
    index = [np.empty(0, dtype=np.int64)]
    for piece in filter(len, np.array_split(np.flatnonzero(fits), _NUM_PIECES)):
        batch, rows = _parsed(_selected(lines, starts, ends, piece), len(piece), parser), piece
        if batch is None:
            found = {row: bytes(lines[starts[row] : ends[row]]) for row in piece.tolist()}
            batch, rows = _apart(found, parser, faults)
        batches.append(batch)
        index.append(rows)
    bad = [RowFault(row, *faults[row]) for row in sorted(faults)]
    return batches, np.concatenate(index) if faults else None, bad


def _apart(
    lines: Mapping[int, bytes], parser: Parser, faults: dict[int, Fault]
) -> tuple[pa.RecordBatch, Int64s]:
    """Return the rows among some lines and their numbers; add the faults of the others."""
    explained = {row: parser.explain(line) for row, line in lines.items()}
    taken = [(pa.RecordBatch.from_pylist([], parser.schema), np.empty(0, dtype=np.int64))]
    waiting = [np.array([row for row, fault in explained.items() if fault is None], np.int64)]
    waiting += [np.array([row]) for row, fault in explained.items() if fault is not None]
    while waiting:
        rows = waiting.pop()
        batch = _parse(parser.texts, b"".join(lines[row] for row in rows.tolist()), len(rows))
        if batch is not None:
            taken.append((batch, rows))
        elif len(rows) > 1:  # no line looks wrong, yet together they fail
            waiting += np.array_split(rows, 2)
        elif len(rows):
            text = shown(lines[row := int(rows[0])].decode(errors="replace").rstrip("\r\n"))
            other = "syntax", f"the line is not a row of {parser.columns}: {text}"
            faults[row] = explained[row] or other
    index = np.concatenate([rows for _, rows in taken])
    order = np.argsort(index)
    return pa.concat_batches([batch for batch, _ in taken]).take(pa.array(order)), index[order]


def _parsed(lines: Text, num_lines: int, parser: Parser) -> pa.RecordBatch | None:
    """Return the rows of lines as typed values, or else as texts; None if a line is not a row."""
    typed = _parse(parser.typed, lines, num_lines)
    return _parse(parser.texts, lines, num_lines) if typed is None else typed


def _parse(
    parse: Callable[[Text, int], pa.RecordBatch], lines: Text, num_lines: int
) -> pa.RecordBatch | None:
    try:
        return parse(lines, num_lines) if num_lines else None
    except pa.ArrowInvalid:
        return None


def _selected(lines: Text, starts: Int64s, ends: Int64s, rows: Int64s) -> Text:
    """Return the lines `rows`, in increasing order."""
    if not len(rows):
        return b""
    if rows[-1] - rows[0] == len(rows) - 1:
        return lines[starts[rows[0]] : ends[rows[-1]]]
    is_taken = np.zeros(len(ends), dtype=np.bool_)
    is_taken[rows] = True
    return np.frombuffer(lines, dtype=np.uint8)[np.repeat(is_taken, ends - starts)].tobytes()


class TextDecoder(Decoder):
    """Base class of decoders for text files with one event per line."""

    comments: tuple[bytes, ...] = ()
    """Prefixes of comment lines."""
    whole_lines = False
    """Whether to leave a last line without line end unread, as the file may grow."""

    def __init__(
        self,
        path: FilePath,
        max_bytes: int | None = None,
        block_bytes: int = BLOCK_BYTES,
        num_header_lines: int = 0,
    ) -> None:
        size = path.stat().st_size
        super().__init__(str(path), size, None, f"{path}, line {num_header_lines + 1}")
        self.num_header_lines = num_header_lines
        self._path, self._max_bytes, self._block_bytes = path, max_bytes, block_bytes
        self._file: TextFile | None = None
        self._head: list[bytes] | None = None

    @abstractmethod
    def parser(self, schema: RowSchema) -> Parser:
        """Return the parser of lines."""

    def head(self) -> list[bytes]:
        """Return the first lines, including the header; they are read once."""
        if self._head is None:
            self._head = self.read_head()
        return self._head

    def read_head(self) -> list[bytes]:
        """Read the header and the lines used to detect columns and types."""
        num_lines = self.num_header_lines + (1 if self.is_growing else SAMPLES)
        return head_of(self._path, num_lines, max_bytes=self._max_bytes)

    def let_grow(self) -> None:
        """Read whole lines only, and detect columns and types from the first row alone."""
        self._head = None
        self.is_growing = self.whole_lines = True

    def progress(self) -> float:
        """Return the share of the file's bytes that the latest `read` has consumed."""
        return 0.0 if self._file is None else self._file.progress()

    def read(self, schema: RowSchema, start: Position | None) -> Iterator[RowBatch]:
        """Return the rows, block after block, from line `start` on."""
        self._file = TextFile(self._path, self._max_bytes, start)
        blocks = self._file.blocks(self._block_bytes, schema.checks.max_bytes, self.whole_lines)
        return self._rows(blocks, self.parser(schema), schema)

    def _rows(
        self, blocks: Iterator[TextBlock], parser: Parser, schema: RowSchema
    ) -> Iterator[RowBatch]:
        """Yield the rows of each block together, or piece by piece if a line is blank or bad.

        A reader that stops at the first bad rows thus does not wait for all of them.
        """
        for block in blocks:
            whole = self._whole(block, parser, schema)
            if whole is not None:
                yield whole
                continue
            for piece in block.pieces(_NUM_PIECES if block.data.strip() else 1):
                yield self._in_part(piece, parser, schema)

    def _whole(self, block: TextBlock, parser: Parser, schema: RowSchema) -> RowBatch | None:
        """Return the rows of a block; None if it has none, or a line that is not one."""
        lines, num_lines, longest = block.data, block.num_lines, schema.checks.max_bytes
        rows = self._rows_among(block)
        if rows is not None:
            ends, num_lines = _line_ends(lines), len(rows)
            lines = _selected(lines, np.append(0, ends[:-1]), ends, rows)
        is_long = len(lines) + block.left_out > longest and (
            block.left_out or np.diff(_line_ends(lines), prepend=0).max() > longest
        )
        batch = None if is_long or not lines.strip() else _parsed(lines, num_lines, parser)
        if batch is None:
            return None
        locate = self._locator(block, rows, longest)
        return validate(batch, schema, locate=locate, position=block.position)

    def _in_part(self, block: TextBlock, parser: Parser, schema: RowSchema) -> RowBatch:
        """Return the rows of a block apart from its blank lines, which are counted."""
        longest, rows, blank = schema.checks.max_bytes, self._rows_among(block), 0
        rows = np.arange(block.num_lines) if rows is None else rows
        ends = _line_ends(block.data)
        starts = np.append(0, ends[:-1])
        if not block.left_out:
            is_space = _IS_SPACE[np.frombuffer(block.data, dtype=np.uint8)]
            is_blank = np.logical_and.reduceat(is_space, starts)[rows]
            rows, blank = rows[~is_blank], int(np.count_nonzero(is_blank))
        lines = _selected(block.data, starts, ends, rows)
        batches, index, faults = parse_lines(lines, len(rows), parser, longest, block.left_out)
        locate = self._locator(block, rows, longest)
        found = validate(
            batches, schema, index=index, faults=faults, locate=locate, position=block.position
        )
        return replace(found, counts={**found.counts, BLANK_LINE: blank}) if blank else found

    def _rows_among(self, block: TextBlock) -> Int64s | None:
        """Return the numbers of lines other than header and comments; None if all are."""
        lines, starts_with = block.data, self.comments
        num_header_lines = max(0, self.num_header_lines + 1 - block.line)
        has_comments = any(
            lines.startswith(start) or b"\n" + start in lines for start in starts_with
        )
        if not num_header_lines and not has_comments:
            return None
        starts = np.append(0, _line_ends(lines)[:-1])
        is_row = np.ones(len(starts), dtype=bool)
        if has_comments:
            is_row[:] = [not lines.startswith(starts_with, at) for at in starts.tolist()]
        is_row[:num_header_lines] = False
        return np.flatnonzero(is_row)

    def _locator(
        self, block: TextBlock, rows: Int64s | None, longest: int
    ) -> Callable[[int], Origin]:
        """Return a function from row to origin; an oversized line is represented by its start."""
        ends = cache(lambda: _line_ends(block.data))

        def locate(row: int) -> Origin:
            number = row if rows is None else int(rows[row])
            start, end = int(ends()[number - 1]) if number else 0, int(ends()[number])
            raw = bytes(block.data[start : min(end, start + longest)])
            place = {"byte": block.offset + start, "line": block.line + number}
            return Origin({"file": self.name, **place}, raw.removesuffix(b"\n").removesuffix(b"\r"))

        return locate


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
