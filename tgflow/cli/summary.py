"""What a command prints when it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tgflow.run.table_figures import TITLES, told

FILES = {
    "report.html": "plots; open it in a browser",
    "metrics.json": "all figures",
    "checkpoint": "model, memory, events",
    "config.toml": "these settings, for --config",
}
RUN_FILES = {
    "report.html": "plots; open it in a browser",
    "metrics.json": "all figures",
    "checkpoints": "model, memory, events; --resume goes on from there",
    "config.toml": "these settings, for --config",
}


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a small table: texts left, other columns right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    for i, name in enumerate(header):
        table.add_column(name, justify="right" if i else "left", style="" if i else "bold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def print_summary(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    note: str,
    path: Path,
    files: Mapping[str, str] = FILES,
) -> None:
    """Print a run's figures, a note about them, and where its files are."""
    print_table(header, rows)
    console = Console(soft_wrap=True, highlight=False)
    console.print(note, style="dim")
    for name, what in files.items():
        console.print(f"  {path / name}  [dim]{what}[/dim]")


def print_tables(tables: Mapping[str, Any]) -> None:
    """Print where features are, and what of them came from a cache."""
    console = Console(soft_wrap=True, highlight=False)
    for name, figures in tables.items():
        console.print(f"{TITLES[name]}: {told(figures)}", style="dim")
