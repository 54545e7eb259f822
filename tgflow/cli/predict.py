"""`tgflow predict` and `tgflow embed`: scores, rankings and embeddings of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tgflow.cli.errors import USAGE, CliError

RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", help="Directory that tgflow run or train has left")
]
To = Annotated[
    Path | None,
    typer.Option(
        "--to", help="File to write, by its ending: .parquet, .csv, .tsv, .jsonl or .arrow"
    ),
]


def predict(
    run: RunPath,
    *,
    src: Annotated[
        list[str] | None, typer.Option("--src", help="Source to propose destinations to; repeat")
    ] = None,
    dst: Annotated[
        list[str] | None,
        typer.Option("--dst", help="Destination to choose among, unset: all; repeat"),
    ] = None,
    top: Annotated[int, typer.Option("--top", "-k", min=1, help="How many for each source")] = 10,
    exclude_known: Annotated[
        bool,
        typer.Option("--exclude-known", help="Leave out those that a source has met already"),
    ] = False,
    pairs: Annotated[
        Path | None,
        typer.Option("--pairs", help="File of pairs to score: CSV, Parquet, Arrow or JSON lines"),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            help="When: a time of the stream's unit, or as 2024-05-01T12:00Z; unset: after it",
        ),
    ] = None,
    to: To = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON to stdout")] = False,
) -> None:
    """Predict with a run: rank the next destinations of a source, or score pairs.

    Ids are those of the stream. The run is not modified and may continue meanwhile; answers use its
    latest checkpoint.

    [bold]Examples[/bold]

      tgflow predict runs/pay --src acc_9 --top 10
      tgflow predict runs/pay --src acc_9 --dst shop_1 --dst shop_2 --json
      tgflow predict runs/pay --pairs pairs.csv --to scores.parquet
    """
    if (pairs is None) == (not src):
        raise CliError("what is asked? give either --src or --pairs", USAGE)
    if pairs is not None and (dst or exclude_known):
        raise CliError("--dst and --exclude-known go with --src; --pairs names both ends", USAGE)
    from tgflow.cli.asking import propose, score_pairs

    if pairs is not None:
        score_pairs(run, pairs, at, to, json)
    else:
        propose(run, src or [], dst, top, exclude_known, at, to, json)


def embed(
    run: RunPath,
    *,
    to: To = None,
    ids: Annotated[
        list[str] | None, typer.Option("--id", help="Node to embed, unset: all; repeat")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            help="When: a time of the stream's unit, or as 2024-05-01T12:00Z; unset: after it",
        ),
    ] = None,
) -> None:
    """Write the embeddings of a run's nodes: one row per node, with its id and e0, e1, ...

    The run is not modified and may continue meanwhile. Without --to, rows go to stdout as CSV.

    [bold]Examples[/bold]

      tgflow embed runs/pay --to embeddings.parquet
      tgflow embed runs/pay --id acc_1 --id acc_2
    """
    from tgflow.cli.asking import write_embeddings

    write_embeddings(run, ids, at, to)
