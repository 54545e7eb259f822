"""`tgflow convert`: convert published data sets to portable formats."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tgflow.streams.options import Unit

_FLAGS = {
    "types": "--node-types {}.types.parquet",
    "labels": "--task property --node-labels {}.labels.parquet",
    "nodes": "--node-features {}.nodes.parquet",
    "test.negatives": "--fixed-negatives {}",
}
"""Flags of `train` for each kind of file, by what follows NAME."""


def convert(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND", help="tgb: links, nodes, typed and knowledge graphs; tgbseq: TGB-Seq."
        ),
    ],
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of its files, or of RelBench's export.")
    ],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write to.")],
    time_unit: Annotated[Unit, typer.Option("--time-unit", help="Unit of the times.")] = "s",
    sort: Annotated[bool, typer.Option("--sort", help="Sort the events by time.")] = False,
) -> None:
    """Convert a benchmark's data set to Parquet and safetensors without running its pickles.

    Prints the files, and the command that trains under the protocol of its board.

    [bold]Examples[/bold]

      tgflow convert tgb datasets/tgbl_wiki --out data
      tgflow train --data data/tgbl-wiki.parquet --features f* --protocol tgbl/1
          --fixed-negatives data/tgbl-wiki
      tgflow convert tgbseq data/ML-20M --out data
    """
    import pyarrow.parquet as pq

    from tgflow.cli.errors import USAGE, CliError
    from tgflow.streams.tgb import convert_tgb, convert_tgbseq

    if kind == "tgb":
        done = convert_tgb(folder, out, time_unit=time_unit, sort=sort)
    elif kind == "tgbseq":
        done = convert_tgbseq(folder, out, sort=sort)
    else:
        raise CliError(f"convert supports tgb and tgbseq, got {kind!r}", USAGE)
    for path in done.files:
        typer.echo(path)
    counts = [f"{num:,} negatives of {part}" for part, num in done.num_negatives.items()]
    typer.echo(", ".join([f"{done.num_events:,} events", *counts]))
    typer.echo(f"licence: {done.about['licence']}")
    name, about = out / done.about["data_set"], done.about
    columns = pq.read_schema(done.files[0]).names
    suffixes = {path.name.removeprefix(f"{name.name}.").rpartition(".")[0] for path in done.files}
    held = about["held"]
    words = [
        f"tgflow train --data {name}.parquet --time-unit {time_unit}",
        *(["--features 'f*'"] if "f0" in columns else []),
        *(["--relation relation"] if "relation" in columns else []),
        f"--protocol {about['protocol']} --seeds 5",
        *(flag.format(name) for suffix, flag in _FLAGS.items() if suffix in suffixes),
        *([f"--val-ratio {held} --test-ratio {held}"] if held == "0.1" else []),
    ]
    typer.echo(" ".join(words))
