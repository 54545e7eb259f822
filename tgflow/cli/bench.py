"""`tgflow bench`: measure speed on this machine."""

from __future__ import annotations

import importlib
import json as jsonlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from tgflow.cli.errors import USAGE, CliError
from tgflow.cli.options import Json
from tgflow.report.formatting import compact
from tgflow.report.table_text import print_table

if TYPE_CHECKING:
    from tgflow.cli.benchmarks.row import Row
    from tgflow.cli.benchmarks.setup import Options


class Benchmark(NamedTuple):
    """A benchmark of the command line."""

    function: str
    """Path `module:name` of a function from `Options` to rows."""
    description: str
    is_slow: bool = False
    """Whether it runs only if it is named."""

    def run(self, options: Options) -> list[Row]:
        module, _, function = self.function.partition(":")
        rows: list[Row] = getattr(importlib.import_module(module), function)(options)
        return rows


BENCHMARKS = {
    "sample": Benchmark(
        "tgflow.cli.benchmarks.graph:sample",
        "temporal neighbor sampling: recent and uniform, one hop and two",
    ),
    "store": Benchmark(
        "tgflow.cli.benchmarks.graph:store", "inserting batches of events into the block store"
    ),
    "prepare": Benchmark(
        "tgflow.cli.benchmarks.train:prepare",
        "preparing whole batches for TGN and TGAT, on one thread",
    ),
    "train": Benchmark("tgflow.cli.benchmarks.train:train", "training TGN and TGAT", is_slow=True),
}

WIDTH = 110
LEAST_SHORTENED = 10_000
FIGURES = ("measured", "baseline", "ratio", "to reach")
MARKS = {True: "✓ ", False: "✗ ", None: ""}
STYLES = {True: "green", False: "red", None: ""}

Names = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME]...", help="Default: all but the slow ones.")
]
Data = Annotated[
    list[Path] | None,
    typer.Option(
        help="Events with columns src, dst, t, such as wikipedia.csv.gz; may be given several "
        "times. Default: synthetic data of that shape.",
        exists=True,
    ),
]
Quick = Annotated[bool, typer.Option("--quick", help="Measure once, on small inputs.")]
Entries = Annotated[
    str | None,
    typer.Option(help="For store and sample: sizes, such as 1e6,1e7. Default: 1e6 to 1e8."),
]
Events = Annotated[
    int | None, typer.Option(help="Limit model benchmarks to this number of events.", min=2_000)
]
Device = Annotated[
    str | None,
    typer.Option(help="For store and sample: cuda adds GPU rows. Default: if available."),
]
OnlyDevice = Annotated[
    bool, typer.Option("--only-device", help="Omit the CPU rows and their baselines.")
]


def bench_command(benchmarks: Mapping[str, Benchmark], call: str) -> Callable[..., None]:
    """Return the command for these benchmarks; `call` is its name in the shell."""

    def bench(
        names: Names = None,
        *,
        data: Data = None,
        quick: Quick = False,
        entries: Entries = None,
        events: Events = None,
        device: Device = None,
        only_device: OnlyDevice = False,
        json: Json = False,
    ) -> None:
        from tgflow.cli.benchmarks.setup import Options

        chosen = _choose(names, benchmarks)
        console = Console(stderr=True, highlight=False)
        options = Options(
            data=data or (),
            quick=quick,
            entries=_sizes(entries),
            events=events,
            device=device,
            only_device=only_device,
            say=lambda what: console.print(f"[dim]{escape(what)}[/dim]"),
        )
        rows: list[Row] = []
        for name in chosen:
            options.say(f"{name}: {benchmarks[name].description}")
            rows += benchmarks[name].run(options)
        if json:
            sys.stdout.write(jsonlib.dumps([row.to_json() for row in rows], indent=2) + "\n")
        else:
            for name in dict.fromkeys(row.name for row in rows):
                _print_rows(name, [row for row in rows if row.name == name])

    bench.__doc__ = _help(benchmarks, call)
    return bench


def _help(benchmarks: Mapping[str, Benchmark], call: str) -> str:
    lines = [
        f"  {name:<12}{each.description}{' (slow)' if each.is_slow else ''}"
        for name, each in benchmarks.items()
    ]
    examples = [
        "",
        " store sample --entries 1e6,1e7 --data wikipedia.csv.gz",
        " sample --quick --json",
        " train --data wikipedia.csv.gz --events 40000",
    ]
    parts = [
        "Measure the speed of tgflow on this machine and compare it with the targets.",
        *("[bold]Names[/bold]", "\n".join(lines)),
        *("[bold]Examples[/bold]", "\n".join(f"  {call}{more}" for more in examples)),
    ]
    return "\n\n".join(parts)


def _choose(names: list[str] | None, benchmarks: Mapping[str, Benchmark]) -> Sequence[str]:
    for name in names or ():
        if name not in benchmarks:
            known = ", ".join(benchmarks)
            raise CliError(f"there is no benchmark {name!r}; choose from {known}", USAGE)
    return names or [name for name, each in benchmarks.items() if not each.is_slow]


def _sizes(entries: str | None) -> tuple[int, ...]:
    from tgflow.cli.benchmarks.setup import LEAST_SIZE

    try:
        sizes = tuple(int(float(size)) for size in entries.split(",")) if entries else ()
    except ValueError:
        raise CliError(
            f"--entries must be numbers such as 1e6,1e7, got {entries!r}", USAGE
        ) from None
    if any(size < LEAST_SIZE for size in sizes):
        raise CliError(f"--entries must be at least {LEAST_SIZE:,}, got {entries!r}", USAGE)
    return sizes


def _print_rows(name: str, rows: Sequence[Row]) -> None:
    width = None if sys.stdout.isatty() else WIDTH
    console = Console(width=width, soft_wrap=True, highlight=False)
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


bench = bench_command(BENCHMARKS, "tgflow bench")
