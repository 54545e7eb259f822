"""Rows of benchmarks as tables: one per name, with a column for each parameter that varies."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tgflow.bench.row import Row
from tgflow.report.formatting import compact

LEAST_SHORTENED = 10_000
"""Numbers from here on are written with a suffix."""
WIDTH = 110
"""Columns of the page, where it is not a terminal."""
MARKS = {True: "✓ ", False: "✗ ", None: ""}
STYLES = {True: "green", False: "red", None: ""}


def print_rows(rows: Sequence[Row]) -> None:
    """Print a table for each name, in the order in which the names came."""
    width = None if sys.stdout.isatty() else WIDTH
    console = Console(width=width, soft_wrap=True, highlight=False)
    for name in dict.fromkeys(row.name for row in rows):
        _print_group(console, name, [row for row in rows if row.name == name])


def _print_group(console: Console, name: str, rows: Sequence[Row]) -> None:
    keys = dict.fromkeys(key for row in rows for key in row.params)
    shown = {key: [_cell(row.params.get(key, "")) for row in rows] for key in keys}
    common = [f"{key}={cells[0]}" for key, cells in shown.items() if len(set(cells)) == 1]
    varying = {key: cells for key, cells in shown.items() if len(set(cells)) > 1}
    unit = f"  {rows[0].unit}" if rows[0].unit else ""
    console.print(Text.assemble((name, "bold"), unit, (f"  {' '.join(common)}", "dim")))
    table = Table(box=box.SIMPLE, show_edge=False, header_style="dim")
    for key in varying:
        numbers = all(not isinstance(row.params.get(key, 0), str) for row in rows)
        table.add_column(key, justify="right" if numbers else "left", no_wrap=True)
    for title in ("measured", "baseline", "ratio", "to reach"):
        table.add_column(title, justify="right", no_wrap=True)
    for i, row in enumerate(rows):
        table.add_row(*(cells[i] for cells in varying.values()), *_figures(row))
    console.print(table)


def _figures(row: Row) -> tuple[str, str, str, Text]:
    """Return what was measured, the baseline, the ratio, and what is to be reached."""
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
    """Write a parameter: large counts short."""
    large = not isinstance(value, str) and value >= LEAST_SHORTENED
    return compact(float(value)) if large else str(value)
