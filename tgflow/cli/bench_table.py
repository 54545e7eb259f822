"""Tables of benchmark rows on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from tgflow.bench.row import Row
from tgflow.report.formatting import compact
from tgflow.report.table_text import print_table

WIDTH = 110
"""Columns of the page if it is not a terminal."""
LEAST_SHORTENED = 10_000
"""The least number that is written with a suffix."""
FIGURES = ("measured", "baseline", "ratio", "to reach")
MARKS = {True: "✓ ", False: "✗ ", None: ""}
STYLES = {True: "green", False: "red", None: ""}


def print_rows(rows: Sequence[Row]) -> None:
    """Print a table for each name, with a column for each parameter that varies."""
    width = None if sys.stdout.isatty() else WIDTH
    console = Console(width=width, soft_wrap=True, highlight=False)
    for name in dict.fromkeys(row.name for row in rows):
        _print_table(console, name, [row for row in rows if row.name == name])


def _print_table(console: Console, name: str, rows: Sequence[Row]) -> None:
    keys = dict.fromkeys(key for row in rows for key in row.params)
    written = {key: [_cell(row.params.get(key, "")) for row in rows] for key in keys}
    varying = [key for key, cells in written.items() if len(set(cells)) > 1]
    common = " ".join(f"{key}={written[key][0]}" for key in keys if key not in varying)
    unit = f"  {rows[0].unit}" if rows[0].unit else ""
    console.print(Text.assemble((name, "bold"), unit, (f"  {common}", "dim")))
    print_table(
        (*varying, *FIGURES),
        [(*(written[key][i] for key in varying), *_figures(row)) for i, row in enumerate(rows)],
        left={
            i
            for i, key in enumerate(varying)
            if any(isinstance(row.params.get(key), str) for row in rows)
        },
        console=console,
    )


def _figures(row: Row) -> tuple[str, str, str, Text]:
    """Return the cells of what was measured, the baseline, the ratio and the targets."""
    goals = [] if row.target is None else [compact(row.target)]
    if row.target_ratio is not None and row.baseline is not None:
        goals.append(f"{row.target_ratio:.2g}x")
    return (
        compact(row.value),
        "" if row.baseline is None else compact(row.baseline),
        "" if row.ratio is None else f"{row.ratio:.2f}x",
        Text(MARKS[row.reached] + ", ".join(goals), STYLES[row.reached]),
    )


def _cell(value: str | float) -> str:
    large = not isinstance(value, str) and value >= LEAST_SHORTENED
    return compact(float(value)) if large else str(value)
