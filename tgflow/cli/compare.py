"""`tgflow compare`: several models in one pass over one stream."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tgflow.cli.options import with_config
from tgflow.config import Config, fields

CONTINUAL = tuple(
    field.key
    for field in fields()
    if field.key.startswith("continual.") and field.name != "protocol"  # it is compare's
)
SETTINGS = (
    "stream", "compare", "order", "checks", "graph", *CONTINUAL, "offline.epochs",
    "offline.patience", "model.dim", "model.heads", "model.neighbors", "model.layers",
    "model.dropout", "model.precision", "model.settings",
    "tables", "run", "checkpoint", "operate.metrics_port", "operate.metrics_host",
    "operate.log_format", "operate.memory_limit",
)  # fmt: skip
OUTPUT = "Output"


@with_config(SETTINGS, has_help_all=True)
def compare(
    config: Config,
    stated: dict[str, Any],
    *,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="As --models quick: baselines.", rich_help_panel=OUTPUT),
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="DIR",
            help="Draw the page of a comparison again, and do nothing else.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Resume the comparison in --out, if there is one, as if it had never stopped.",
            rich_help_panel="Resuming",
        ),
    ] = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print metrics.json to stdout, and nothing else.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
) -> None:
    """Compare models on a stream: all predict and learn the same events, in one pass.

    All are asked about the same events and negatives, and models whose needs agree share the
    batches that are prepared; each has the scores that `tgflow run` would give it. One that
    diverges drops out, and the others go on. Leaves scores.arrow (every event by every model),
    events.arrow (what is known of each event), metrics.json and a report.html: who is ahead and
    whether that is chance, what an event costs, where each is good, and how all drift.

    Some settings go by the kind of stream, which is measured and printed (--preset): whatever is
    set otherwise stays.

    With --protocol dyglib/1 or tgb/1 each model is trained offline, in epochs, and what is compared
    is the test; --resume keeps those that are done, and goes on after the newest epoch saved.

    [bold]Examples[/bold]

      tgflow compare --stream events.csv --models jodie,tgn,tgn+pairs --seeds 3
      tgflow compare -s events.csv --models tgn,small=tgn --model-set small.memory_dim=32
      tgflow compare -s events.csv --models tgn,graphmixer --frozen-at 0.5
      tgflow compare -s events.csv --models tgn,jodie --protocol dyglib/1
      tgflow compare -s events.csv --out runs/compared --resume
      tgflow compare --report runs/compared
    """
    from tgflow.cli.comparing import compare_stream, draw_again
    from tgflow.runtime.directory import ResumeOptions

    if report is not None:
        draw_again(report)
        return
    compare_stream(config, ResumeOptions(resume, stated=stated), quick=quick, as_json=json)
