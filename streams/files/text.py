"""Text files of one row a line: blocks of lines in, rows out, bad lines apart from good ones."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
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
)
from tgflow.streams.rows.row_batch import Fault, Int64s, Origin, Position, RowBatch
from tgflow.streams.rows.validate import RowSchema, may_be_tiny, validate

BLOCK_BYTES = 1 << 20
LONGEST_LINE = 1 << 20
COMPRESSION = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
MAX_RATIO, ALWAYS_ALLOWED = 200, 1 << 30
BOM = b"\xef\xbb\xbf"
_PARSER_BYTES = 1 << 18
_FEW_LINES = 16
_NUM_PIECES = 16

Text: TypeAlias = bytes | bytearray


def count_lines(lines: Text) -> int:
    """Return how many lines there are, a last one without its line end included."""
    ends = np.frombuffer(lines, dtype=np.uint8) == ord("\n")  # 5x faster than bytes.count
    return int(np.count_nonzero(ends)) + (not lines.endswith(b"\n"))


def line_ends(lines: Text) -> Int64s:
    """Return the byte after each line."""
    ends = np.flatnonzero(np.frombuffer(lines, dtype=np.uint8) == ord("\n")) + 1
    return ends if lines.endswith(b"\n") else np.append(ends, len(lines))


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Whole lines of a file."""

    data: Text
    line: int
    offset: int
    num_lines: int
    left_out: int
    """Bytes that `data` lacks; only of one line, too long to keep."""
    sha256: str

    @property
    def end(self) -> int:
        """The byte after the block."""
        return self.offset + len(self.data) + self.left_out


class TextFile:
    """A text file, decompressed if its name ends in `.gz`, `.zst` or `.bz2`."""

    def __init__(self, path: Path, max_bytes: int | None = None) -> None:
        self.path = path
        self.size = path.stat().st_size
        self.whole_lines = False
        """Whether a last line without its end is left for later."""
        self._max_bytes = max_bytes
        self._raw: Any = None

    def progress(self) -> float:
        """Return which share of the file's bytes the latest `blocks` has read."""
        if self._raw is None or not self.size:
            return 0.0
        return 1.0 if self._raw.closed else float(self._raw.tell() / self.size)

    def head(self, num_lines: int, num_bytes: int | None = None) -> list[bytes]:
        """Return the first `num_lines` without their ends; stop after `num_bytes` of text."""
        data = b""
        for block in self.blocks(1 << 16):
            data += block.data
            is_enough = num_bytes is not None and len(data) >= num_bytes
            if is_enough or block.line + block.num_lines > num_lines:
                break
        return [line.rstrip(b"\r\n") for line in data.splitlines(keepends=True)[:num_lines]]

    def blocks(
        self,
        block_bytes: int = BLOCK_BYTES,
        start: Mapping[str, Any] | None = None,
        longest: int = LONGEST_LINE,
    ) -> Iterator[TextBlock]:
        """Return the file in blocks of about `block_bytes` from `start` on, a `position`.

        A line longer than `longest` comes alone, and without what is beyond that length, where it
        does not fit into a block; none is longer in memory.
        """
        self.size = self.path.stat().st_size
        allowed = self._max_bytes or max(ALWAYS_ALLOWED, MAX_RATIO * self.size)
        stream = _Stream(self.path, self.size, start, allowed)
        self._raw = stream.raw
        return stream.blocks(block_bytes, longest, self.whole_lines)

    def position(self, block: TextBlock) -> Position:
        """Return where to go on after a block."""
        line = block.line + block.num_lines
        return {"byte": block.end, "line": line, "size": self.size, "sha256": block.sha256}


class _Stream:
    """The decompressed bytes of a file from a place on, and the last of those before it."""

    def __init__(
        self, path: Path, size: int, start: Mapping[str, Any] | None, allowed: int
    ) -> None:
        self.name = str(path)
        compression = COMPRESSION.get(path.suffix) if size else None
        self.raw: Any = pa.OSFile(self.name)
        self._stream = pa.CompressedInputStream(self.raw, compression) if compression else self.raw
        self._allowed = allowed if compression else None
        self._offset, self._line, self._tail = 0, 1, b""
        self._num_read = 0
        if start is not None:
            check_size(self.name, size, start)
            self._skip_to(start, seekable=not compression)

    def close(self) -> None:
        self._stream.close()
        self.raw.close()

    def blocks(self, block_bytes: int, longest: int, whole_lines: bool) -> Iterator[TextBlock]:
        with closing(self):
            line, offset = self._line, self._offset
            buffer = self._read(max(block_bytes, len(BOM)))
            skipped = self._num_skipped(buffer, offset == 0)
            self._passed(buffer[:skipped])
            more = bool(buffer)
            offset, buffer = offset + skipped, buffer[skipped:]
            while more or buffer:
                cut = buffer.rfind(b"\n") + 1 if more or whole_lines else len(buffer)
                if not (cut or more):
                    return
                rest, left_out = buffer[cut:], 0
                del buffer[cut:]
                if buffer:
                    self._passed(buffer)
                elif len(rest) > longest:
                    buffer, left_out, rest = self._long_line(rest, longest, block_bytes)
                if buffer:
                    num_lines = 1 if left_out else count_lines(buffer)
                    sha256 = digest(self._tail)
                    block = TextBlock(buffer, line, offset, num_lines, left_out, sha256)
                    yield block
                    line, offset = line + num_lines, block.end
                buffer = self._read(block_bytes, rest) if more else rest
                more = len(buffer) > len(rest)

    def _long_line(
        self, start: bytearray, longest: int, block_bytes: int
    ) -> tuple[bytearray, int, bytearray]:
        """Return the start of a line, how much of it is left out, and what follows it."""
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

    def _num_skipped(self, head: Text, is_start: bool) -> int:
        """Return how much of `head` is a byte order mark, or ends a last line that had no end."""
        if is_start:
            return len(BOM) if head.startswith(BOM) else 0
        if not head or self._tail.endswith(b"\n"):
            return 0
        for end in (b"\n", b"\r\n"):
            if head.startswith(end):
                return len(end)
        text = "was read while it was being written, and has grown since; add whole lines only"
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
            text = f"the compressed data holds more than {self._allowed} bytes of text"
            raise StreamError(self.name, "too_large", f"{text}; if it should, decompress it first")
        return buffer

    def _passed(self, data: Text) -> None:
        """Keep the last of what has been handed on."""
        end = bytes(data[-ANCHOR_BYTES:])
        self._tail = end if len(end) == ANCHOR_BYTES else (self._tail + end)[-ANCHOR_BYTES:]

    def _skip_to(self, start: Mapping[str, Any], seekable: bool) -> None:
        end = start["byte"]
        if seekable:
            self.raw.seek(max(0, end - ANCHOR_BYTES))
            self._num_read = self.raw.tell()
        while self._num_read < end and (data := self._read(min(end - self._num_read, BLOCK_BYTES))):
            self._passed(data)
        if self._num_read < end:
            text = f"it ends after {self._num_read} bytes, but was read up to byte {end}"
            raise SourceTruncated(self.name, "schema", f"{text}; put the old file back")
        check_digest(self.name, self._tail, start, f"byte {end}")
        self._offset, self._line = end, start["line"]


@dataclass(frozen=True, slots=True)
class Parser:
    """How lines of a format become rows.

    Args:
        parse: Returns the rows of so many lines, one each, or raises `pa.ArrowInvalid`. Lines it
            takes together it also takes one by one, with the same rows.
        explain: Returns what seems wrong with a line, None if nothing does.
        is_hopeless: Whether `parse` is certain to refuse a line; it is quick.
        schema: The columns of the rows.
        columns: Their names as messages list them.
    """

    parse: Callable[[Text, int], pa.RecordBatch]
    explain: Callable[[Text], Fault | None]
    is_hopeless: Callable[[Text], bool]
    schema: pa.Schema
    columns: str


def parser_block(lines: Text, num_lines: int) -> int:
    """Return the block size to parse lines with: some per block where Arrow may use threads.

    Arrow refuses a line that spans three of its blocks, so the last few lines of a search for one
    go in a single block.
    """
    return _PARSER_BYTES if num_lines > _FEW_LINES else len(lines) + 1


def refuse_tiny(lines: Text, is_tiny: Callable[[Text], bool]) -> None:
    """Raise `pa.ArrowInvalid` if a time or label has more decimals than Arrow can read."""
    if may_be_tiny(lines) and any(map(is_tiny, filter(may_be_tiny, lines.splitlines()))):
        raise pa.ArrowInvalid("a number with too many decimals")


def parse_lines(
    lines: Text, num_lines: int, parser: Parser, longest: int, left_out: int = 0
) -> tuple[pa.RecordBatch, Int64s | None, list[RowFault]]:
    """Return the rows of lines, of each its number (None if all are rows), and the other's faults.

    Clean lines are parsed at once. Refused ones are parsed again in 16 pieces; in a refused piece
    each line that seems wrong is parsed alone, and all others together.
    """
    if not (left_out or _has_long_line(lines, longest)):
        batch = _parse(lines, num_lines, parser)
        if batch is not None:
            return batch, None, []
    ends = line_ends(lines)
    sizes = np.diff(ends, prepend=0)
    batches, numbers = [], []
    faults = {}

    places = list(pairwise([0, *ends.tolist()]))

    def line(row: int) -> bytes:
        return bytes(lines[slice(*places[row])])

    def takes(rows: Int64s) -> bool:
        if not len(rows):
            return True
        batch = _parse(_selected(lines, ends, sizes, rows), len(rows), parser)
        if batch is not None:
            batches.append(batch)
            numbers.append(rows)
        return batch is not None

    for row in np.flatnonzero(sizes + left_out > longest).tolist():
        text = f"the line has {sizes[row] + left_out:,} bytes, more than max_record_bytes={longest}"
        faults[row] = "too_large", text
    short = np.flatnonzero(sizes + left_out <= longest)
    pieces = np.array_split(short, min(_NUM_PIECES, max(1, len(short))))
    refused = np.concatenate([piece for piece in pieces if not takes(piece)] or [short[:0]])
    likely, seem_wrong = [], {}
    for row in refused.tolist():
        if fault := parser.explain(line(row)):
            seem_wrong[row] = fault
        else:
            likely.append(row)
    for row, fault in seem_wrong.items():
        if parser.is_hopeless(line(row)) or not takes(np.array([row])):
            faults[row] = fault
    waiting = [np.array(likely, dtype=np.int64)]
    while waiting:
        rows = waiting.pop()
        if takes(rows):
            continue
        if len(rows) > 1:  # nothing seems wrong, but something is
            waiting += np.array_split(rows, 2)
            continue
        text = shown(line(rows[0]).decode(errors="replace").rstrip("\r\n"))
        faults[int(rows[0])] = "syntax", f"the line is no row of {parser.columns}: {text}"
    table = pa.Table.from_batches(batches, parser.schema).combine_chunks()
    batch = next(iter(table.to_batches()), pa.RecordBatch.from_pylist([], parser.schema))
    index = np.concatenate(numbers) if numbers else np.empty(0, dtype=np.int64)
    order = np.argsort(index)
    found = [RowFault(row, *faults[row]) for row in sorted(faults)]
    return batch.take(pa.array(order)), index[order] if faults else None, found


def _has_long_line(lines: Text, longest: int) -> bool:
    start = 0
    while len(lines) - start > longest:
        start = lines.rfind(b"\n", start, start + longest) + 1
        if not start:
            return True
    return False


def _parse(lines: Text, num_lines: int, parser: Parser) -> pa.RecordBatch | None:
    try:
        return parser.parse(lines, num_lines)
    except pa.ArrowInvalid:
        return None


def _selected(lines: Text, ends: Int64s, sizes: Int64s, rows: Int64s) -> Text:
    """Return the lines `rows`, which rise."""
    if rows[-1] - rows[0] == len(rows) - 1:
        return lines[ends[rows[0]] - sizes[rows[0]] : ends[rows[-1]]]
    is_taken = np.zeros(len(ends), dtype=np.bool_)
    is_taken[rows] = True
    return np.frombuffer(lines, dtype=np.uint8)[np.repeat(is_taken, sizes)].tobytes()


class TextDecoder(Decoder):
    """A text file with one event a line."""

    comments: tuple[bytes, ...] = ()
    """What lines begin with that are no rows."""

    def __init__(
        self,
        path: Path,
        max_bytes: int | None = None,
        block_bytes: int = BLOCK_BYTES,
        num_header_lines: int = 0,
    ) -> None:
        self._file = TextFile(path, max_bytes)
        super().__init__(str(path), self._file.size, None, f"{path}, line {num_header_lines + 1}")
        self.num_header_lines = num_header_lines
        self._block_bytes = block_bytes
        self._head: list[bytes] | None = None

    @abstractmethod
    def parser(self, schema: RowSchema) -> Parser:
        """Return how lines become rows."""

    def head(self) -> list[bytes]:
        """Return the first lines, the header among them; they are read once."""
        if self._head is None:
            num_samples = 1 if self.is_growing else SAMPLES
            self._head = self._file.head(num_samples + self.num_header_lines)
        return self._head

    def let_grow(self) -> None:
        """Read whole lines only, and learn what there is to learn from the first row alone."""
        self._head = None
        self.is_growing = self._file.whole_lines = True

    def complete(self) -> None:
        """Also read a last line without its end: nothing more will come."""
        self._file.whole_lines = False

    def progress(self) -> float:
        """Return which share of the file's bytes the latest `read` has consumed."""
        return self._file.progress()

    def read(self, schema: RowSchema, start: Position | None) -> Iterator[RowBatch]:
        """Return the rows, block after block, from line `start` on."""
        blocks = self._file.blocks(self._block_bytes, start, schema.checks.max_bytes)
        return self._rows(blocks, self.parser(schema), schema)

    def _rows(
        self, blocks: Iterator[TextBlock], parser: Parser, schema: RowSchema
    ) -> Iterator[RowBatch]:
        longest = schema.checks.max_bytes
        for block in blocks:
            position = self._file.position(block)
            cut = 0
            num_skipped = min(max(0, self.num_header_lines + 1 - block.line), block.num_lines)
            for _ in range(num_skipped):
                cut = block.data.find(b"\n", cut) + 1 or len(block.data)
            lines = block.data[cut:] if cut else block.data
            num_lines = block.num_lines - num_skipped
            rows = self._rows_among(lines)
            if rows is not None:
                ends, num_lines = line_ends(lines), len(rows)
                lines = _selected(lines, ends, np.diff(ends, prepend=0), rows) if len(rows) else b""
            if not lines:
                continue
            batch, index, faults = parse_lines(lines, num_lines, parser, longest, block.left_out)
            yield validate(
                batch,
                schema,
                index=index,
                faults=faults,
                locate=self._locator(block, num_skipped, rows, longest),
                position=position,
            )

    def _rows_among(self, lines: Text) -> Int64s | None:
        """Return the numbers of lines that are no comments; None if none is one."""
        starts_with = self.comments
        if not any(lines.startswith(start) or b"\n" + start in lines for start in starts_with):
            return None
        starts = np.append(0, line_ends(lines)[:-1])
        is_comment = [lines.startswith(starts_with, start) for start in starts.tolist()]
        return np.flatnonzero(~np.array(is_comment))

    def _locator(
        self, block: TextBlock, num_skipped: int, rows: Int64s | None, longest: int
    ) -> Callable[[int], Origin]:
        """Return where a row stands; of a line that is too long its start stands for its bytes."""
        ends = cache(lambda: line_ends(block.data))

        def locate(row: int) -> Origin:
            number = num_skipped + (row if rows is None else int(rows[row]))
            start, end = int(ends()[number - 1]) if number else 0, int(ends()[number])
            raw = bytes(block.data[start : min(end, start + longest)])
            place = {"byte": block.offset + start, "line": block.line + number}
            return Origin({"file": self.name, **place}, raw.removesuffix(b"\n").removesuffix(b"\r"))

        return locate


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
