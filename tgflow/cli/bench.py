"""`tgflow bench`: measure speed on this machine."""

from __future__ import annotations

import importlib
import json as jsonlib
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from tgflow.cli.bench_table import print_rows
from tgflow.cli.errors import USAGE, CliError

if TYPE_CHECKING:
    from tgflow.bench.row import Row

BENCHMARKS = {
    "sample": "temporal neighbor sampling: recent and uniform, one hop and two",
    "prepare": "preparing whole batches for TGN and TGAT, on one thread",
    "store": "inserting batches of events into the block store",
    "table": "rows of features by id, from every placement that a table can be in",
    "durable": "the durable log and checkpoints, beside bare writes",
    "stream": "putting events in order, and reading them from files and Kafka",
    "cache": "hit rates of every cache policy on real batches, and what a cached gather costs",
    "disk": "a 4 GB table under a 1 GB budget: planned cache, LRU and the page cache",
    "checkpoint": "what checkpoints cost a training that goes on",
    "train": "training TGN and TGAT, against the peers that are installed",
}
"""Modules of `tgflow.bench`, each with `run(options) -> list[Row]` and perhaps `PICTURES`."""
SLOW = ("disk", "checkpoint", "train")


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help=f"Of {', '.join(BENCHMARKS)}; default: all but disk, checkpoint and train.",
        ),
    ] = None,
    *,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="Events with columns src, dst, t, such as wikipedia.csv.gz; may be given several "
            "times. Without it a made stream of that shape.",
            exists=True,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure once and on little: for a look.")
    ] = False,
    entries: Annotated[
        str | None,
        typer.Option(
            help="Of store and sample: sizes of the made graph, as in 1e6,1e7. Default: 1e6 to 1e8."
        ),
    ] = None,
    events: Annotated[
        int | None,
        typer.Option(help="Of train: use only the stream's first events.", min=100),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for the pictures of store, sample and cache.")
    ] = Path("runs/bench"),
    device: Annotated[
        str | None,
        typer.Option(
            help="Of store, sample and table: cuda adds rows to the CPU's. Default: if there."
        ),
    ] = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON list of rows to stdout.", rich_help_panel="Output"
        ),
    ] = False,
) -> None:
    """Measure tgflow on this machine and compare with other methods and the figures to reach.

    [bold]Examples[/bold]

      tgflow bench
      tgflow bench store sample --entries 1e6,1e7 --data wikipedia.csv.gz --data mathoverflow.csv.gz
      tgflow bench sample --quick --json
      tgflow bench train --data wikipedia.csv.gz --events 40000
    """
    from tgflow.bench.options import Options

    chosen = names or [name for name in BENCHMARKS if name not in SLOW]
    for name in chosen:
        if name not in BENCHMARKS:
            known = ", ".join(BENCHMARKS)
            raise CliError(f"there is no benchmark {name!r}; choose from {known}", USAGE)
    console = Console(stderr=True, highlight=False)
    options = Options(
        data=data or (),
        quick=quick,
        entries=_sizes(entries),
        events=events,
        device=device,
        tell=lambda what: console.print(f"[dim]{escape(what)}[/dim]"),
    )
    rows: list[Row] = []
    for name in chosen:
        options.tell(f"{name}: {BENCHMARKS[name]}")
        module = importlib.import_module(f"tgflow.bench.{name}")
        measured = module.run(options)
        if hasattr(module, "PICTURES") or hasattr(module, "draw"):
            console.print(f"[dim]{name}: drawn in {_draw(module, measured, out / name)}[/dim]")
        rows += measured
    if json:
        sys.stdout.write(jsonlib.dumps([row.plain() for row in rows], indent=2) + "\n")
    else:
        print_rows(rows)


def _sizes(entries: str | None) -> tuple[int, ...]:
    """Return graph sizes from a text such as 1e6,5e7."""
    from tgflow.bench.options import LEAST_SIZE

    try:
        sizes = tuple(int(float(size)) for size in entries.split(",")) if entries else ()
    except ValueError:
        raise CliError(
            f"--entries must be numbers such as 1e6,1e7, got {entries!r}", USAGE
        ) from None
    if any(size < LEAST_SIZE for size in sizes):
        raise CliError(f"--entries must be at least {LEAST_SIZE:,}, got {entries!r}", USAGE)
    return sizes


def _draw(module: ModuleType, rows: list[Row], path: Path) -> Path:
    """Write a benchmark's pictures; returns the file."""
    from tgflow.bench.curves import draw

    file = path.with_suffix(".svg")
    file.parent.mkdir(parents=True, exist_ok=True)
    own = getattr(module, "draw", None)
    file.write_text(own(rows) if own else draw(module.PICTURES, rows), encoding="utf-8")
    return file


if __name__ == "__main__":  # alone it needs fewer packages, which a GPU machine may lack
    typer.run(bench)
