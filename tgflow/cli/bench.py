"""`tgflow bench`: measure speed on this machine."""

from __future__ import annotations

import importlib
import json as jsonlib
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from tgflow.cli.errors import USAGE, CliError
from tgflow.cli.summary import print_table
from tgflow.run.figures import compact

if TYPE_CHECKING:
    from tgflow.bench.row import Row

BENCHMARKS = {
    "sample": "temporal neighbour sampling: recent and uniform, one hop and two",
    "prepare": "preparing whole batches for TGN and TGAT, on one thread",
    "store": "inserting batches of events into the block store",
    "train": "training TGN and TGAT, against the peers that are installed",
}
"""Modules of `tgflow.bench`, each with `run(data, rounds) -> list[Row]`."""


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help=f"Of {', '.join(BENCHMARKS)}; default: all but train."
        ),
    ] = None,
    *,
    data: Annotated[
        Path | None,
        typer.Option(help="wikipedia.csv.gz; without it a made stream of its shape.", exists=True),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure once instead of the best of 5.")
    ] = False,
    events: Annotated[
        int | None,
        typer.Option(help="Of train: use only the stream's first events.", min=100),
    ] = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON list of rows to stdout.", rich_help_panel="Output"
        ),
    ] = False,
) -> None:
    """Measure tgflow on this machine and compare with the figures to reach.

    [bold]Examples[/bold]

      tgflow bench
      tgflow bench sample --data wikipedia.csv.gz --json
      tgflow bench train --quick
      tgflow bench train --data wikipedia.csv.gz --events 40000
    """
    chosen = names or [name for name in BENCHMARKS if name != "train"]
    for name in chosen:
        if name not in BENCHMARKS:
            known = ", ".join(BENCHMARKS)
            raise CliError(f"there is no benchmark {name!r}; choose from {known}", USAGE)
    rows: list[Row] = []
    for name in chosen:
        Console(stderr=True).print(f"[dim]{name}: {BENCHMARKS[name]}[/dim]")
        module = importlib.import_module(f"tgflow.bench.{name}")
        limit = {"events": events} if name == "train" else {}
        rows += module.run(data, 1, **limit) if quick else module.run(data, **limit)
    if json:
        sys.stdout.write(jsonlib.dumps([_plain(row) for row in rows], indent=2) + "\n")
    else:
        _print(rows)


def _plain(row: Row) -> dict[str, object]:
    """Return what JSON can say of a row: a figure that was not taken is null."""
    value = None if math.isnan(row.value) else row.value
    return {**asdict(row), "value": value, "ratio": row.ratio}


def _print(rows: list[Row]) -> None:
    print_table(
        ("benchmark", "measured", "to reach", "ratio"),
        [
            (
                " ".join(
                    [row.name, *(f"[dim]{k}={escape(str(v))}[/dim]" for k, v in row.params.items())]
                ),
                f"{compact(row.value)} {row.unit}",
                "" if row.baseline is None else f"{compact(row.baseline)} {row.unit}",
                "" if row.ratio is None else f"{row.ratio:.2f}x",
            )
            for row in rows
        ],
    )
