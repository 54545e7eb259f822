"""The search for the lines that a parser refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from tgflow.streams.blocks import Text, TextBlock
from tgflow.streams.checks import Fault

_PARSER_BYTES = 1 << 18
_FEW_LINES = 16
_SEARCH_LINES = 32
_NUM_PIECES = 16

Parsed = tuple[TextBlock, pa.RecordBatch | None]
"""Lines and their rows, or one line and None if it is no row."""


@dataclass(frozen=True, slots=True)
class Parser:
    """How lines of a format become rows.

    Args:
        parse: Gives the rows of lines, one each, or raises `pa.ArrowInvalid`. Lines it
            takes together it also takes one by one, with the same rows.
        explain: Tells what seems wrong with a line, None if nothing does.
        schema: The columns of the rows.
        columns: Their names as messages list them.
    """

    parse: Callable[[TextBlock], pa.RecordBatch]
    explain: Callable[[Text], Fault | None]
    schema: pa.Schema
    columns: str


def parser_block(num_bytes: int, num_lines: int) -> int:
    """Return the block size to parse lines with: some per block where Arrow may use threads.

    Arrow refuses a line that spans three of its blocks, so the last few lines of a search for one
    go in a single block.
    """
    return _PARSER_BYTES if num_lines > _FEW_LINES else num_bytes + 1


def parse_lines(block: TextBlock, parser: Parser) -> Iterator[Parsed]:
    """Yield `block` in order, in pieces with their rows; a line that is no row comes with None.

    A clean block is parsed once. A refused one is cut into 16, and so on until few lines are left,
    which costs about one more parse of the block for the first bad line; of the few, those that
    seem wrong go one by one and the others together.
    """
    try:
        rows = parser.parse(block)
    except pa.ArrowInvalid:
        if block.num_lines == 1:
            yield block, None
            return
        for part in _parts(block, parser):
            yield from parse_lines(part, parser)
        return
    yield block, rows


def _parts(block: TextBlock, parser: Parser) -> Iterable[TextBlock]:
    """Return several lines cut into at least two parts, each line that seems wrong alone."""
    if block.num_lines <= _SEARCH_LINES:
        runs = [
            (wrong, list(lines))
            for wrong, lines in groupby(block.lines(), lambda line: bool(parser.explain(line.data)))
        ]
        parts = [part for wrong, run in runs for part in (run if wrong else [_joined(run)])]
        if len(parts) > 1:
            return parts
    return block.pieces(_NUM_PIECES)


def _joined(lines: Sequence[TextBlock]) -> TextBlock:
    return TextBlock(b"".join(line.data for line in lines), lines[0].line, lines[0].offset)
