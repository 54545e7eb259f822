"""Rows of benchmarks on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from tgflow.bench.grid import Grid, grids
from tgflow.bench.row import Row
from tgflow.report.table_text import print_table

WIDTH = 110
"""Columns of the page, where it is not a terminal."""
MARKS = {True: "✓ ", False: "✗ ", None: ""}
STYLES = {True: "green", False: "red", None: ""}


def print_rows(rows: Sequence[Row]) -> None:
    """Print a table for each name, in the order in which the names came."""
    width = None if sys.stdout.isatty() else WIDTH
    console = Console(width=width, soft_wrap=True, highlight=False)
    for grid in grids(rows):
        _print_grid(console, grid)


def _print_grid(console: Console, grid: Grid) -> None:
    unit = f"  {grid.unit}" if grid.unit else ""
    console.print(Text.assemble((grid.name, "bold"), unit, (f"  {' '.join(grid.common)}", "dim")))
    print_table(
        grid.header,
        [
            (*cells[:-1], Text(MARKS[reached] + cells[-1], STYLES[reached]))
            for cells, reached in zip(grid.cells, grid.reached, strict=True)
        ],
        left={i for i, is_number in enumerate(grid.is_number) if not is_number},
        console=console,
    )
