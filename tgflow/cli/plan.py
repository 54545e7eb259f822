"""`tgflow plan`: what the ranks of a world would do with a stream."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tgflow.cli.options import STREAM_OF_FILES, with_config
from tgflow.config import Config

SETTINGS = (*STREAM_OF_FILES, "graph", "model", "continual", "operate.memory_limit")
WORLD = "World"


@with_config(SETTINGS)
def plan(
    config: Config,
    stated: dict[str, Any],
    *,
    world: Annotated[
        int,
        typer.Option("--world", help="Ranks, 1 to 64.", rich_help_panel=WORLD, show_default=False),
    ],
    events: Annotated[
        float | None,
        typer.Option(
            "--events",
            help="Say what as many events of this kind would need, such as 1e10.",
            min=1,
            rich_help_panel=WORLD,
        ),
    ] = None,
    nodes: Annotated[
        float | None,
        typer.Option(
            "--nodes",
            help="And as many nodes; unset: as many more as there are more events.",
            min=1,
            rich_help_panel=WORLD,
        ),
    ] = None,
    batches: Annotated[
        int,
        typer.Option(
            "--batches",
            help="Micro-batches to look at, spread over the stream; 0: all.",
            min=0,
            rich_help_panel=WORLD,
        ),
    ] = 100,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON to stdout.", rich_help_panel="Output")
    ] = False,
) -> None:
    """Say what each rank of a world would compute, send and hold, on one process and any machine.

    Which rank computes which rows, and what it must send, follows from the stream and the settings
    alone, so it is counted here, batch by batch, and nothing is learned. Graph, memory and edge
    features may be whole on every rank or in shards: what is sent and held is said of both. With
    --events and --nodes it says what a larger stream of this kind would need, and what of it does
    not fit into --memory-limit, or into the memory of this machine.

    [bold]Examples[/bold]

      tgflow plan --data examples/data/collegemsg.csv.gz --world 4 --batch-size 1000
      tgflow plan --data wikipedia.csv.gz --world 64 --events 1e10 --nodes 1e9 --mrr-negatives 1
      tgflow plan --data u.csv --world 8 --batches 0 --json | jq .bytes
    """
    from tgflow.cli.planning import plan_ranks
    from tgflow.cli.rank_plan import World

    asked = World(
        world,
        batches,
        None if events is None else round(events),
        None if nodes is None else round(nodes),
    )
    plan_ranks(config, stated, asked, as_json=json)
