"""`tgflow run`: learn from a stream as it arrives."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tgflow.cli.options import with_config
from tgflow.config import Config

SETTINGS = (
    "stream", "order", "checks", "kafka", "graph", "model", "plan", "tables", "run", "checkpoint",
    "operate",
    "train.learning_rate", "train.weight_decay", "train.grad_clip", "train.updates",
    "train.replay_ratio", "train.replay_horizon", "train.replay_half_life",
)  # fmt: skip


CONTINUE = "Going on"


@with_config(SETTINGS)
def run(
    config: Config,
    stated: dict[str, Any],
    *,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the run in --out, if there is one: all as if nothing had happened.",
            rich_help_panel=CONTINUE,
        ),
    ] = False,
    allow_config_change: Annotated[
        bool,
        typer.Option(
            "--allow-config-change",
            help="Go on with other settings too; what they reset is told without this.",
            rich_help_panel=CONTINUE,
        ),
    ] = False,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="Start over if all checkpoints or the log are damaged; what there is moves aside.",
            rich_help_panel=CONTINUE,
        ),
    ] = False,
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

    Leaves a run directory with config.toml, metrics.jsonl, metrics.json, checkpoints/ and a
    report.html to open in a browser. Kill it at any moment: with --resume it goes on, and ends with
    the very model it would have had. Ctrl-C (or SIGTERM) ends it after the micro-batch at hand,
    with all of it kept; a second one at once.

    [bold]Examples[/bold]

      tgflow run --stream examples/data/collegemsg.csv.gz
      tgflow run -s clicks.parquet --src user --dst page --t at --time-unit ms -m tgat
      tgflow run -s events.csv --out runs/events --resume
      tgflow run -s kafka://localhost:9092/clicks --codec json --max-time-jump 86400
      tgflow run -s events.csv --edge-table disk --edge-cache 256MiB
      tgflow run -s events.csv --limit 5000 --json | jq '."prequential.ap"'
      tgflow run --config runs/collegemsg-tgn/config.toml --seed 1
    """
    from tgflow.cli.continual import learn
    from tgflow.runtime.directory import ResumeOptions

    learn(config, ResumeOptions(resume, fresh, allow_config_change, stated), json)
