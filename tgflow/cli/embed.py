"""`tgflow embed`: the embeddings of a run's nodes, as a table."""

from __future__ import annotations

from typing import Annotated

import typer

from tgflow.cli.predict import RunPath, To


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
    """Write the embeddings of a run's nodes: a row each, with its id, and e0, e1, ...

    Nothing in the run is changed, which may go on meanwhile. Without --to rows go to stdout as CSV.

    [bold]Examples[/bold]

      tgflow embed runs/pay --to embeddings.parquet
      tgflow embed runs/pay --id acc_1 --id acc_2
    """
    from tgflow.cli.asking import write_embeddings

    write_embeddings(run, ids, at, to)
