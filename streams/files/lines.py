"""The search for the lines that a parser refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tgflow.streams.files.blocks import Text, TextBlock
from tgflow.streams.rows.checks import Fault, Int64s
from tgflow.streams.rows.ticks import may_be_tiny

_PARSER_BYTES = 1 << 18
_FEW_LINES = 16
_SEARCH_LINES = 32
_NUM_PIECES = 16
_MANY_PIECES = 4
_FEW_SUSPECTS = 2
OK, SUSPECT, BAD = 0, 1, 2

Verdicts = npt.NDArray[np.int8]

Parsed = tuple[Int64s, pa.RecordBatch | None]
"""Numbers of lines in a block with their rows, or of one line that is no row."""


@dataclass(frozen=True, slots=True)
class Parser:
    """How lines of a format become rows.

    Args:
        parse: Gives the rows of lines, one each, or raises `pa.ArrowInvalid`. Lines it
            takes together it also takes one by one, with the same rows.
        explain: Returns what seems wrong with a line, None if nothing does.
        is_hopeless: Whether `parse` is certain to refuse a line; it is quick.
        screen: Returns of all lines at once what each seems to be, one of `OK`, `SUSPECT` and
            `BAD` (`parse` is certain to refuse it); None if it cannot.
        suspect: Which of the lines, from 0, the parser names when it refuses them; None if it
            names none.
        schema: The columns of the rows.
        columns: Their names as messages list them.
    """

    parse: Callable[[TextBlock], pa.RecordBatch]
    explain: Callable[[Text], Fault | None]
    is_hopeless: Callable[[Text], bool]
    screen: Callable[[TextBlock], Verdicts | None]
    suspect: Callable[[TextBlock], int | None]
    schema: pa.Schema
    columns: str


def parser_block(num_bytes: int, num_lines: int) -> int:
    """Return the block size to parse lines with: some per block where Arrow may use threads.

    Arrow refuses a line that spans three of its blocks, so the last few lines of a search for one
    go in a single block.
    """
    return _PARSER_BYTES if num_lines > _FEW_LINES else num_bytes + 1


def refuse_tiny(lines: Text, is_tiny: Callable[[Text], bool]) -> None:
    """Raise `pa.ArrowInvalid` if a time or label has more decimals than Arrow can read.

    Args:
        lines: Whole lines.
        is_tiny: Whether that is so of a line, asked of those that it may be so of.
    """
    if may_be_tiny(lines) and any(map(is_tiny, filter(may_be_tiny, lines.splitlines()))):
        raise pa.ArrowInvalid("a number with too many decimals")


def parse_lines(block: TextBlock, parser: Parser) -> Iterator[Parsed]:
    """Yield all lines of a block, in any order, with their rows; one that is no row with None.

    A clean block is parsed once. Of a refused one the parser may name a line: that line goes
    alone, and what stands before and after it again, which costs about two more parses of the
    block. After a few of these, or if none is named, all lines are screened at once, and those that
    seem wrong go one by one and all others together. Where that finds nothing, a block is cut into
    16 pieces, each of them again, until few lines are left. Where few lines are left, or many
    pieces are refused, each line is looked at to see whether it seems wrong.
    """
    yield from _search(block, np.arange(block.num_lines), parser, _FEW_SUSPECTS)


def _search(block: TextBlock, numbers: Int64s, parser: Parser, suspects: int) -> Iterator[Parsed]:
    rows = _parse(block, parser)
    if rows is not None or block.num_lines == 1:
        yield numbers, rows
    elif block.num_lines <= _SEARCH_LINES:
        yield from _one_by_one(block, numbers, parser, None)
    elif suspects and (found := parser.suspect(block)) is not None:
        for piece in block.around(found):
            yield from _search(piece, _own(block, piece, numbers), parser, suspects - 1)
    elif (verdicts := parser.screen(block)) is not None and verdicts.any():
        yield from _one_by_one(block, numbers, parser, verdicts)
    else:
        yield from _in_pieces(block, numbers, parser)


def _in_pieces(block: TextBlock, numbers: Int64s, parser: Parser) -> Iterator[Parsed]:
    pieces = block.pieces(_NUM_PIECES)
    parsed = [_parse(piece, parser) for piece in pieces]
    if parsed.count(None) > _MANY_PIECES:
        yield from _one_by_one(block, numbers, parser, None)
        return
    for piece, rows in zip(pieces, parsed, strict=True):
        own = _own(block, piece, numbers)
        if rows is not None:
            yield own, rows
        else:
            yield from _search(piece, own, parser, 0)


def _own(block: TextBlock, piece: TextBlock, numbers: Int64s) -> Int64s:
    """Return the numbers of the lines of a piece."""
    return numbers[piece.line - block.line :][: piece.num_lines]


def _one_by_one(
    block: TextBlock, numbers: Int64s, parser: Parser, verdicts: Verdicts | None
) -> Iterator[Parsed]:
    """Yield lines that seem wrong apart, and all others together."""
    verdicts = _explained(block, parser) if verdicts is None else verdicts
    wrong, rest = np.flatnonzero(verdicts != OK), np.flatnonzero(verdicts == OK)
    for i, line in zip(wrong.tolist(), block.lines_at(wrong), strict=True):
        is_hopeless = verdicts[i] == BAD
        yield numbers[i : i + 1], None if is_hopeless else _parse(line, parser)
    if len(rest) == 0:
        return
    joined = block.taken(rest)
    if len(wrong):
        yield from _search(joined, numbers[rest], parser, 0)
        return
    for piece in joined.pieces(2):  # nothing seems wrong, but something is
        yield from _search(piece, _own(joined, piece, numbers), parser, 0)


def _explained(block: TextBlock, parser: Parser) -> Verdicts:
    """Return what each line seems to be, looked at one by one."""
    verdicts = np.full(block.num_lines, OK, np.int8)
    for i, line in enumerate(block.lines()):
        if parser.explain(line.data) is not None:
            verdicts[i] = BAD if parser.is_hopeless(line.data) else SUSPECT
    return verdicts


def _parse(block: TextBlock, parser: Parser) -> pa.RecordBatch | None:
    """Return the rows of lines, None if they are refused."""
    try:
        return parser.parse(block)
    except pa.ArrowInvalid:
        return None
