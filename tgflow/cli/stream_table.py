"""What became of a stream's rows, as a table; whatever they held, it is escaped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tgflow.cli.summary import print_table
from tgflow.run.refused import refusals

HEADER = ("why", "partition", "rows", "first", "for example")
PARTS = ("accepted", "late", "malformed", "duplicate", "buffered")


def print_stream(stream: Mapping[str, Any], letters: Path) -> None:
    """Print which rows were not taken, if any, and where they are kept."""
    lines = [(why, part, rows, first, last) for why, part, rows, first, _, last in refusals(stream)]
    if lines:
        print_table(HEADER, lines)
    if lines or stream["counts"]["duplicate"]:
        console = Console(soft_wrap=True, highlight=False)
        console.print(Text(f"{row_sums(stream)}; refused rows are in {letters}", "dim"))


def row_sums(stream: Mapping[str, Any]) -> str:
    """Return what became of the rows in one line."""
    counts = stream["counts"]
    sums = ", ".join(f"{counts[name]:,} {name}" for name in PARTS if counts[name])
    return f"{counts['read']:,} rows read: {sums or 'none'}"
