r"""Delimited text with or without a header line, in one dialect.

Rows follow RFC 4180 with the exceptions below; Python's `csv` with `strict=True` splits lines
into the same values:

* A row ends in `\n` or `\r\n`; a lone `\r` outside quotes makes it bad. Quoted values may contain
  the delimiter, line ends and doubled quotes. Nothing may stand between the closing quote and the
  next delimiter. A quote that opens within a value is an ordinary character: `5"x` is `5"x`.
* Blank lines are bad rows, and a row has as many values as the header. Text is UTF-8; the file may
  start with a byte order mark. NUL is an ordinary character.
* Spaces and tabs around numbers are ignored; around text and ids they are kept. Numbers are
  decimal, with or without point and exponent; `nan`, `inf`, `1_000` and `0x10` are not numbers.

The parse of a row depends on its own text alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from statistics import mode
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from tgflow.base._native import may_have_other_spellings
from tgflow.graph.id_columns import canonical, ids_of_kind
from tgflow.streams.errors import StreamError, shown
from tgflow.streams.files.text import (
    BLOCK_BYTES,
    BOM,
    Parser,
    Quotes,
    Text,
    TextDecoder,
    TextFile,
    head_of,
    is_unicode,
    parser_block,
    refuse_tiny,
    undecodable,
)
from tgflow.streams.options import TextLayout
from tgflow.streams.rows.row_batch import Fault, Int64s
from tgflow.streams.rows.schema import Columns, listed
from tgflow.streams.rows.validate import MISSING, RowSchema, column_types, has_too_many_decimals

SPACE, TAB = "space", "tab"
UNREAD = "_"
"""Name of an ignored column; may be repeated."""
MAX_COMMENTS, HEAD_BYTES = 10_000, 8 << 20
"""Maximum leading comment lines of a file, and about how many bytes are searched for them."""
_JODIE = re.compile(r"user(_id)?,item(_id)?,timestamp,state_label")
_FEATURES = re.compile(r"comma_separated_(list|array)_of_features")
_INTEGER = re.compile(r"\s*-?\d{1,99}\s*", re.ASCII)  # int() refuses thousands of digits
_SPACES = re.compile(rb"[ \t]+")


def names_of(layout: TextLayout) -> list[str] | None:
    """Return the column names, None where they are not given."""
    sep, comment, columns = layout.sep, layout.comment, layout.columns
    if sep not in (None, SPACE, TAB) and (len(sep) != 1 or sep in '"\n\r'):
        raise ValueError(f"sep must be one character, tab or space, got {sep!r}")
    if sep is not None and not sep.isascii():
        raise ValueError(f"sep must be an ASCII character, tab or space, got {sep!r}")
    if comment is not None and not comment.strip():
        raise ValueError(f"comment must be a line prefix such as #, got {comment!r}")
    if columns is None:
        return None
    given = columns.split(",") if isinstance(columns, str) else columns
    names = [name.strip() for name in given]
    twice = [name for name in names if name != UNREAD and names.count(name) > 1]
    if twice or not all(names):
        what = f"{twice[0]!r} is there twice" if twice else "a name is empty"
        raise ValueError(f"columns={columns!r}: {what}; write _ for one that is not read")
    return names


@dataclass(frozen=True, slots=True)
class Dialect:
    """Layout of a delimited text format.

    Args:
        delimiter: Separator of values; a space stands for any run of `blanks`.
        has_header: Whether the first line names the columns.
        comments: Prefixes of comment lines.
        blanks: Bytes treated as a space.
        weight_from: Minimum width of a headerless row whose third value is a weight.
    """

    delimiter: str = ","
    has_header: bool = True
    comments: tuple[bytes, ...] = ()
    blanks: bytes = b"\t"
    weight_from: int = 1 << 30


SNAP = Dialect(" ", False, (b"#", b"%"), b"\t,")
"""SNAP's temporal networks: src, dst, t; further columns are named c3, c4, ..."""
EDGES = replace(SNAP, weight_from=4)
"""Network Repository's `.edges`: src, dst, t; with four values or more src, dst, weight, t."""
KONECT = replace(SNAP, weight_from=0)
"""KONECT's `out.NAME`: src, dst, weight, t; the first comment declares a bipartite graph."""


class CsvDecoder(TextDecoder):
    """Decode delimited text with the layout of its format and the user's options.

    Without a header and without given names the columns are src, dst, t; further ones are named
    c3, c4, ...
    """

    def __init__(
        self,
        path: Path,
        max_bytes: int | None = None,
        block_bytes: int = BLOCK_BYTES,
        dialect: Dialect = Dialect(),
        layout: TextLayout | None = None,
    ) -> None:
        super().__init__(path, max_bytes, block_bytes)
        layout = layout or TextLayout()
        self._dialect, self._given = dialect, names_of(layout)
        sep, comment = layout.sep, layout.comment
        self._delimiter = {SPACE: " ", TAB: "\t"}.get(sep, sep) if sep else dialect.delimiter
        self._blanks = b"\t" if sep == SPACE else dialect.blanks
        self.comments = dialect.comments if comment is None else (comment.encode(),)
        head_comments = self._leading_comments()
        if dialect == KONECT:
            self.bipartite = bool(head_comments) and b"bip" in head_comments[0].split()
        self._header = layout.header
        if self._header is None:
            self._header = dialect.has_header and layout.columns is None
        blanks = self._blanks if self._delimiter == " " else b""
        self.quotes: Quotes = Quotes(self._delimiter.encode() + blanks, self.comments)
        self.num_header_lines = len(head_comments) + self._header
        self.first_place = f"{self.name}, line {self.first_line}"
        row = None if self._given is None else self._first_row()
        if self._given is not None and row and len(row) != len(self._given):
            text = f"columns={','.join(self._given)!r} names {len(self._given)} columns, and the "
            text += f"first row has {len(row)} values: {shown(self._delimiter.join(row))}; write _ "
            text += "for each that is not read, or choose another sep=..."
            raise StreamError(self.first_place, "schema", text)

    def names(self) -> Sequence[str] | None:
        if self._given is not None:
            return [f"_{i}" if name == UNREAD else name for i, name in enumerate(self._given)]
        if self._header:
            return self._header_names()
        if (row := self._first_row()) is None:
            return None
        first = ["src", "dst", *["weight"] * (len(row) >= self._dialect.weight_from), "t"]
        return [*first[: len(row)], *(f"c{i}" for i in range(len(first), len(row)))]

    def notes(self) -> Sequence[str]:
        names = self.names()
        if self._header or self._given is not None or names is None:
            return ()
        return [f"no header: the columns are read as {listed(names)}; columns='...' names others"]

    def read_head(self) -> list[bytes]:
        return [bytes(self._tidy(line)) for line in super().read_head()]

    def samples(self, columns: Columns) -> Sequence[Mapping[str, Any]]:
        """Return the values of some of the first lines; ids that look like numbers as numbers."""
        names, rows = self.names() or (), []
        for line in self.head()[self.num_header_lines :]:
            is_row = not line.startswith(self.comments) and undecodable(line) is None
            values = split_values(line, self._delimiter) if is_row else []
            if len(values) == len(names):
                row = {n: _typed(v) for n, v in zip(names, values, strict=True)}
                texts = dict(zip(names, values, strict=True))
                rows.append(row | {n: typed_id(texts[n]) for n in (columns.src, columns.dst)})
        return rows

    def parser(self, schema: RowSchema) -> Parser:
        return csv_parser(self.names() or (), self._delimiter, schema, self.quotes, self._tidy)

    def plain(self) -> tuple[bytes, str, Sequence[str]]:
        """Return all rows without header and comments, their separator and the column names."""
        text = bytes(self._tidy(TextFile(self._path).read().removeprefix(BOM)))
        lines = text.splitlines(keepends=True)[self.num_header_lines :]
        rows = b"".join(line for line in lines if not line.startswith(self.comments))
        return rows, self._delimiter, self.names() or ()

    def refuse_first_row(self) -> None:
        """Raise `StreamError` if the line where the format has its header begins with integers."""
        line = next(iter(self.head()), b"")
        values = split_values(line, ",")
        if len(values) > 1 and all(as_integer(value) is not None for value in values[:2]):
            text = f"the first line is a row, not a header: {shown(line.decode())}"
            way_out = "put the header above it, or read it with format='csv' columns='src,dst,t'"
            raise StreamError(f"{self.name}, line 1", "schema", f"{text}; {way_out}")

    def _header_names(self) -> list[str]:
        if not (lines := self.head()[self.num_header_lines - 1 :]):
            raise StreamError(self.name, "schema", "the file is empty, expected a header line")
        where = f"{self.name}, line {self.num_header_lines}"
        if b"\0" in lines[0]:
            text = "the header has NUL bytes: it is not CSV in UTF-8, or a copy that was cut short"
            raise StreamError(where, "encoding", f"{text}; fetch or convert the file again")
        if len(_lone_returns(lines[0])) and b'"' not in lines[0]:
            text = r"lines end in \r alone; convert them: tr '\r' '\n' < FILE > NEW_FILE"
            raise StreamError(where, "syntax", text)
        if fault := undecodable(lines[0]):
            raise StreamError(where, *fault)
        if len(lines[0]) >= BLOCK_BYTES:
            text = f"the header has more than {BLOCK_BYTES:,} bytes; leave columns out of the file"
            raise StreamError(where, "too_large", text)
        if not (names := split_values(lines[0], self._delimiter)):
            what, _ = _quote_fault(lines[0], self.quotes)
            text = f"{what} in the header {shown(lines[0].decode())}; fix the header"
            raise StreamError(where, "syntax", text)
        return [name.strip() for name in names]

    def _first_row(self) -> list[str] | None:
        """Return the values of the first row; empty if no line has any, None without a line."""
        lines = [x for x in self.head()[self.num_header_lines :] if not x.startswith(self.comments)]
        rows = (split_values(x, self._delimiter) for x in lines if undecodable(x) is None)
        return next(filter(None, rows), []) if lines else None

    def _leading_comments(self) -> list[bytes]:
        lines = []
        if self.comments:
            lines = head_of(self._path, MAX_COMMENTS + 1, HEAD_BYTES, self._max_bytes)
        count = sum(1 for _ in takewhile(lambda line: line.startswith(self.comments), lines))
        if count > MAX_COMMENTS:
            text = f"it begins with more than {MAX_COMMENTS:,} comment lines"
            raise StreamError(self.name, "schema", f"{text}; is it a list of edges?")
        return lines[:count]

    def _tidy(self, lines: Text) -> Text:
        """Return space-delimited lines with single separators and no surrounding spaces."""
        if self._delimiter != " ":
            return lines
        parts, at, values = [], 0, self.quotes.find_each(lines if b'"' in lines else b"")
        for start, end in zip(values.starts.tolist(), values.ends.tolist(), strict=True):
            parts += [self._tidied(lines[at:start]), lines[start:end]]
            at = end
        return b"".join([*parts, self._tidied(lines[at:])]).strip(b" ")

    def _tidied(self, text: Text) -> Text:
        found = text.translate(bytes.maketrans(self._blanks, b" " * len(self._blanks)))
        if b"  " in found:
            found = _SPACES.sub(b" ", found)
        for wide, plain in ((b" \n", b"\n"), (b" \r\n", b"\r\n"), (b"\n ", b"\n")):
            if wide in found:
                found = found.replace(wide, plain)
        return found


class JodieDecoder(CsvDecoder):
    """JODIE's published CSV files (Kumar et al., KDD 2019): wikipedia, reddit, ...

    The header has five names for `4 + F` values per row, src, dst, t, label, f0, f1, ..., or names
    each feature. Users and items are numbered separately from 0, so the stream is bipartite.
    """

    bipartite = True

    def names(self) -> Sequence[str]:
        """Return src, dst, t, label, and one name for each further value of most first rows."""
        self.refuse_first_row()
        widths = [len(split_values(line, ",")) for line in self.head()[1:] if not undecodable(line)]
        num_features = max(mode(widths) - 4, 0) if widths else 0
        given = self._header_names()[4:] if widths else []
        if len({*given}) != num_features or _FEATURES.fullmatch(",".join(plain_names(given))):
            given = [f"f{i}" for i in range(num_features)]
        return ["src", "dst", "t", "label", *given]

    def notes(self) -> Sequence[str]:
        text = f"src, dst, t, label and {len(self.default_features())} features, users and items as"
        way_out = "format='csv' reads the columns by their own names"
        return [f"read as JODIE's files: {text} separate nodes; {way_out}"]

    def default_features(self) -> Sequence[str]:
        """Return f0, f1, ..., which are read unless other features are requested."""
        return self.names()[4:]


def plain_names(names: Sequence[str]) -> list[str]:
    """Return names in lower case, with `_` between words."""
    return [re.sub(r"[\s_-]+", "_", name.strip().lower()) for name in names]


def is_jodie(header: Sequence[str], row: Sequence[str]) -> bool:
    """Return whether a file has JODIE's columns, by its header and the values of its first row."""
    names = plain_names(header)
    is_list = _FEATURES.fullmatch(",".join(names[4:])) is not None
    are_numbers = len(row or header) == len(header) and all(map(_is_number, row[4:]))
    return _JODIE.fullmatch(",".join(names[:4])) is not None and (is_list or are_numbers)


def csv_parser(
    names: Sequence[str],
    delimiter: str,
    schema: RowSchema,
    quotes: Quotes,
    tidy: Callable[[Text], Text] = lambda lines: lines,
) -> Parser:
    """Return the parser of lines; times are parsed as decimals, never as floats."""
    columns = schema.columns
    reading = pa.csv.ReadOptions(column_names=[*names])
    parsing = pa.csv.ParseOptions(delimiter=delimiter)
    with_line_ends = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    types = column_types(schema)
    places = [names.index(name) for name in types]
    converting = _strict(types, ("", *MISSING) if columns.fill_missing is not None else ())
    as_text = _strict(dict.fromkeys(types, pa.string()))
    as_ids = _strict(dict.fromkeys([columns.src, columns.dst], pa.string()))
    decimals = [names.index(name) for name, kind in types.items() if pa.types.is_decimal(kind)]

    def table(lines: Text, options: pa.csv.ConvertOptions, num_lines: int) -> pa.RecordBatch:
        layout = with_line_ends if b'"' in lines else parsing
        table = pa.csv.read_csv(pa.BufferReader(lines), reading, layout, options)
        if len(table) != num_lines:
            raise pa.ArrowInvalid("not one row a line")
        return table.combine_chunks().to_batches()[0]

    def is_tiny(line: Text) -> bool:
        values = split_values(line, delimiter)
        return len(values) < len(names) or any(has_too_many_decimals(values[i]) for i in decimals)

    def checked(lines: Text, num_lines: int) -> Text:
        lines = tidy(lines)
        check_quotes(lines, quotes)
        if b"\xef" in lines and (lines.startswith(BOM) or b"\n" + BOM in lines):
            raise pa.ArrowInvalid("a byte order mark")  # Arrow would skip a leading one
        reading.block_size = parser_block(lines, num_lines)
        return lines

    def typed(lines: Text, num_lines: int) -> pa.RecordBatch:
        lines = checked(lines, num_lines)
        refuse_tiny(lines, is_tiny, quotes.row_ends)
        batch = table(lines, converting, num_lines)
        ends = [batch[columns.src], batch[columns.dst]] if schema.ids == "int" else []
        if any((column.to_numpy(zero_copy_only=False) < 0).any() for column in ends):
            raise pa.ArrowInvalid("a negative id, such as -007")
        if ends and may_have_other_spellings(lines, delimiter):
            for column in table(lines, as_ids, num_lines).columns:
                if ids_of_kind(column, "integers")[1].any():
                    raise pa.ArrowInvalid("an id such as 007, which Arrow reads as 7")
        return batch

    def texts(lines: Text, num_lines: int) -> pa.RecordBatch:
        return table(checked(lines, num_lines), as_text, num_lines)

    def row(line: bytes) -> tuple[list[str], Fault | None]:
        line = bytes(tidy(line))
        values = split_values(line, delimiter, "surrogateescape")
        found = [values[i] for i in places] if len(values) == len(names) else []
        is_row = found and is_unicode("".join(found)) and not line.startswith(BOM)
        is_row = is_row and not line.endswith(b"\r")
        return found, None if is_row else _fault(line, names, delimiter, quotes)

    return Parser((typed, texts), row, pa.schema(dict.fromkeys(types, pa.string())))


def check_quotes(lines: Text, quotes: Quotes) -> None:
    """Raise `pa.ArrowInvalid` for quotes and line ends that Arrow would read in another way."""
    found = quotes.find(lines) if b'"' in lines else None
    if found is not None and (found.is_open or not found.is_sound):
        raise pa.ArrowInvalid("an open quote, or text after a closing one")  # Arrow appends it
    returns = _lone_returns(lines)
    if len(returns) and (found is None or not found.hold(returns).all()):
        raise pa.ArrowInvalid(r"a \r that ends no line; end lines with \n or \r\n")


def split_values(row: Text, delimiter: str, errors: str = "strict") -> list[str]:
    """Split a row into values; empty if it is blank, not UTF-8, or wrongly quoted."""
    try:
        text = row.decode(errors=errors).removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        return []
    if '"' not in text:
        return text.split(delimiter) if text and "\r" not in text and "\n" not in text else []
    values, at, pattern = [], 0, _value_of(delimiter)
    while (value := pattern.match(text, at)) is not None:
        values.append(value[2] if value[1] is None else value[1].replace('""', '"'))
        at = value.end()
        if at == len(text):
            return values
        at += 1
    return []


@cache
def _value_of(delimiter: str) -> re.Pattern[str]:
    """Return the pattern of a value up to the delimiter after it."""
    end = re.escape(delimiter)
    return re.compile(rf'(?:"((?:[^"]++|"")*+)"|(?!")([^{end}\r\n]*+))(?={end}|\Z)')


def as_integer(value: str) -> int | None:
    """Parse an integer, with or without spaces and tabs around it; None if `value` is not one."""
    return int(value) if _INTEGER.fullmatch(value) else None


def _lone_returns(lines: Text) -> Int64s:
    r"""Return the offsets of each `\r` without `\n`."""
    if b"\r" not in lines or lines.count(b"\r") == lines.count(b"\r\n"):
        return np.empty(0, np.int64)
    data = np.frombuffer(lines, dtype=np.uint8)
    return np.flatnonzero((data == ord("\r")) & (np.append(data[1:], 0) != ord("\n")))


def _quote_fault(row: Text, quotes: Quotes) -> tuple[str, str]:
    """Return the quoting error of a row without values, and the fix."""
    if quotes.find(row).is_open:
        return "a quote is not closed", "close it"
    return "text follows a closing quote", "write quotes within quotes twice"


def _fault(line: Text, names: Sequence[str], delimiter: str, quotes: Quotes) -> Fault | None:
    if fault := undecodable(line):
        return fault
    plain = line.removesuffix(b"\n").removesuffix(b"\r") if line.endswith(b"\n") else line
    if not quotes.find(plain).hold(_lone_returns(plain)).all():
        return "syntax", r"a \r within the line; end lines with \n or \r\n"
    if not (values := split_values(plain, delimiter)):
        what, way_out = _quote_fault(plain, quotes)
        if num_ends := plain.count(b"\n"):
            what += f", in a row of {num_ends + 1:,} lines"
        return "syntax", f"{what}; {way_out}"
    if len(values) != len(names):
        text = f"{len(values)} values, expected {len(names)} ({listed(names)})"
        if len(values) < len(names) and not line.endswith(b"\n"):
            way_out = "the file ends within this line: fetch it again, or remove the line"
            return "schema", f"{text}; {way_out}"
        return "schema", f"{text}; fix or remove the line"
    return None


def _strict(types: Mapping[str, pa.DataType], missing: Sequence[str] = ()) -> pa.csv.ConvertOptions:
    """Return conversion options with no null values except in numeric columns with `missing`."""
    return pa.csv.ConvertOptions(
        column_types=types,
        include_columns=list(types),
        null_values=[*missing],
        strings_can_be_null=False,
    )


def typed_id(value: str) -> int | str:
    """Return an id of a file without types: an integer, or a text, as `canonical`."""
    return value if (number := canonical(value)) is None else number


def _typed(value: str) -> int | float | str:
    if (number := as_integer(value)) is not None:
        return number
    return float(value) if _is_number(value) else value


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return "_" not in value
