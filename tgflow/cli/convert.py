"""`tgflow convert`: convert published data sets to portable formats."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tgflow.streams.options import Unit


def convert(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="tgb: link prediction of TGB.")],
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of its files, or of RelBench's export.")
    ],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write to.")],
    time_unit: Annotated[Unit, typer.Option("--time-unit", help="Unit of the times.")] = "s",
    sort: Annotated[bool, typer.Option("--sort", help="Sort the events by time.")] = False,
) -> None:
    """Convert a benchmark's data set to Parquet and safetensors without running its pickles.

    [bold]Examples[/bold]

      tgflow convert tgb datasets/tgbl_wiki --out data
      tgflow train --data data/tgbl-wiki.parquet --features f* --protocol tgbl/1
          --fixed-negatives data/tgbl-wiki
    """
    from tgflow.cli.errors import USAGE, CliError
    from tgflow.streams.tgb import convert_tgb

    if kind != "tgb":
        raise CliError(f"convert supports tgb, got {kind!r}", USAGE)
    done = convert_tgb(folder, out, time_unit=time_unit, sort=sort)
    for path in done.files:
        typer.echo(path)
    counts = ", ".join(f"{num:,} negatives of {part}" for part, num in done.num_negatives.items())
    typer.echo(f"{done.num_events:,} events, {counts}")
