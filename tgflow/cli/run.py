"""`tgflow run`: learn from a stream as it arrives."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tgflow.cli.nproc import MaxRestarts, Nproc, is_started, run_ranks
from tgflow.cli.options import with_config
from tgflow.config import Config

SETTINGS = (
    "stream", "order", "checks", "kafka", "graph", "model", "task", "continual", "tables", "run",
    "checkpoint", "start", "scores", "serve", "operate", "ranks",
)  # fmt: skip
RESUME = "Resuming"


@with_config(SETTINGS, takes_file=True, has_help_all=True)
def run(
    config: Config,
    stated: dict[str, Any],
    *,
    context: typer.Context,
    nproc: Nproc = None,
    max_restarts: MaxRestarts = 10,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Resume the run in --out if it exists; otherwise start one.",
            rich_help_panel=RESUME,
        ),
    ] = False,
    allow_config_change: Annotated[
        bool,
        typer.Option(
            "--allow-config-change",
            help="Allow changed settings on resume; without it, a table lists what they reset.",
            rich_help_panel=RESUME,
        ),
    ] = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print only metrics.json to stdout.",
            rich_help_panel="Output",
        ),
    ] = False,
) -> None:
    """Learn continually from a stream: predict, learn and store each micro-batch.

    Writes a run directory with config.toml, metrics.jsonl, metrics.json, checkpoints/ and
    report.html. A run that was killed continues with --resume and ends with exactly the same model.
    Ctrl-C (or SIGTERM) stops it after the current micro-batch and saves all progress; a second one
    stops it immediately.

    The default model, tgn+pairs, is TGN with the exact history of each pair as an additional input;
    -m tgn selects the model of the paper.

    [bold]Examples[/bold]

      tgflow run examples/data/collegemsg.csv.gz
      tgflow run -s clicks.parquet --src user --dst page --t at --time-unit ms -m tgat
      tgflow run log.csv --no-header --columns src,dst,_,t --follow --max-wait 1s
      tgflow run -s events.csv --out runs/events --resume
      tgflow run -s events.csv --nproc 2 --out runs/two
      tgflow run -s kafka://localhost:9092/clicks --codec json --max-time-jump 86400
      tgflow run -s events.csv --edge-table disk --edge-cache 256MiB
      tgflow run -s events.csv --scores scores.parquet
      tgflow run -s events.csv --log-to tensorboard
      tgflow run -s kafka://localhost:9092/clicks --max-time-jump 86400 --serve 8080
      tgflow run -s new.csv --init-from runs/old-offline
      tgflow run -s pay.csv --task edge --target is_fraud --label-delay 1d
      tgflow run -s events.csv --limit 5000 --json | jq '."prequential.ap"'
      tgflow run -s events.csv -m tgn --model-set aggregator=mean --model-set memory_dim=64
      tgflow run --config runs/collegemsg-tgn/config.toml --seed 1
    """
    if nproc is not None and not is_started():
        raise typer.Exit(run_ranks(config, context.obj, nproc, max_restarts, resume=resume))
    from tgflow.cli.continual import learn
    from tgflow.runtime.directory import ResumeOptions

    learn(config, ResumeOptions(resume, allow_config_change, stated), json)
