"""`tgflow forget`: remove nodes from all that a run keeps."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from tgflow.cli.errors import USAGE, CliError, hint
from tgflow.cli.options import Json

POLL_SECONDS = 0.2


def forget(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory of tgflow run")],
    *,
    node: Annotated[
        list[str] | None, typer.Option("--node", help="Id of a node to forget; may be repeated")
    ] = None,
    nodes: Annotated[
        Path | None, typer.Option("--nodes", help="File with an id in each line")
    ] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Leave it to the process that learns the run")
    ] = False,
    json: Json = False,
) -> None:
    """Remove nodes from all that a run keeps, and list what it cannot reach.

    Their events, features, labels, memory, counts and the text of their ids go from the log, the
    newest checkpoint, scores and dead letters; older checkpoints are removed. In a log position of
    such an event there remains an event of one erased node with itself, of the same time, so that a
    run continues, and repeats, as before. Ids are never given to another node; events that come
    later with an id that was forgotten are those of a new node.

    A process that learns the run stops within seconds at a checkpoint, forgets and goes on, and
    this command waits for it. One of several processes (--nproc), or that reads a pipe, does so
    when it ends. Killed at any point, the run is as before or the rest is done when it is resumed.

    [bold]Examples[/bold]

      tgflow forget runs/pay --node acc_9
      tgflow forget runs/pay --node acc_9 --node acc_12 --json
      tgflow forget runs/pay --nodes erase.txt --no-wait
    """
    from tgflow.checkpoint.durable.errors import Locked
    from tgflow.run.forget import DONE, FOLDER, carry_out, request, unreachable
    from tgflow.run.records import read_checked

    names = [*(node or []), *(nodes.read_text(encoding="utf-8").splitlines() if nodes else [])]
    names = [*dict.fromkeys(name for name in names if name)]
    if not names:
        raise CliError("forget needs the ids of nodes: --node ID, or --nodes FILE", USAGE)
    file, is_told = request(run, names), False
    while file.exists():
        try:
            carry_out(run, hint)
        except Locked as error:
            if no_wait:
                hint(f"{error.args[0].partition(';')[0]}, which will forget the nodes")
                return
            if not is_told:
                hint(f"{error.args[0].partition(';')[0]}; waiting until it has forgotten the nodes")
            is_told = True
            time.sleep(POLL_SECONDS)
    done = read_checked((run / FOLDER / DONE).read_bytes())
    found = {**done, "unreachable": unreachable(run)}
    if json:
        sys.stdout.write(jsonlib.dumps(found, indent=2) + "\n")
        return
    typer.echo(
        f"forgot {done['known']:,} nodes of {done['nodes']:,} ids, with {done['events']:,} events; "
        "not reached, to be removed where it is:"
    )
    for each in found["unreachable"]:
        typer.echo(f"  {each}")
