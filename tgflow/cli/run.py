"""`tgflow run`: learn from a stream as it arrives."""

from __future__ import annotations

from typing import Annotated

import typer

from tgflow.cli.options import with_config
from tgflow.config import Config

SETTINGS = (
    "stream", "order", "checks", "kafka", "graph", "model", "plan", "run", "checkpoint", "operate",
    "train.learning_rate", "train.weight_decay", "train.grad_clip", "train.updates",
    "train.replay_ratio", "train.replay_horizon", "train.replay_half_life",
)  # fmt: skip


@with_config(SETTINGS)
def run(
    config: Config,
    *,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print metrics.json to stdout, and nothing else.",
            rich_help_panel="Output",
        ),
    ] = False,
) -> None:
    """Learn continually from a stream: predict each micro-batch, learn it, store it.

    Leaves a run directory with config.toml, metrics.jsonl, metrics.json, checkpoint/ and a
    report.html to open in a browser. Ctrl-C ends the stream early and keeps what was learnt.

    [bold]Examples[/bold]

      tgflow run --stream examples/data/collegemsg.csv.gz
      tgflow run -s clicks.parquet --src user --dst page --t at --time-unit ms -m tgat
      tgflow run -s events.csv --limit 5000 --json | jq '."prequential.ap"'
      tgflow run --config runs/collegemsg-tgn/config.toml --seed 1
    """
    from tgflow.cli.continual import learn

    learn(config, json)
