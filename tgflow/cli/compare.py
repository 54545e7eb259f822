"""`tgflow compare`: several models in one pass over one stream."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tgflow.cli.options import MetricsJson, Overwrite, Resume, with_config
from tgflow.run.config import LEARNING_OF, Config

SETTINGS = (
    "stream", "compare", "task", "order", "checks", "graph", *LEARNING_OF["continual"],
    "learning.epochs", "learning.patience",
    "model.dim", "model.neighbors", "model.precision", "model.settings",
    "tables", "run", "checkpoint", "operate.metrics_port", "operate.metrics_host",
    "operate.log_format", "operate.memory_limit",
)  # fmt: skip


@with_config(SETTINGS, is_long=True)
def compare(
    config: Config,
    stated: dict[str, Any],
    *,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Compare baselines only; same as --models quick.",
            rich_help_panel="Output",
        ),
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="DIR",
            help="Only redraw the report of a finished comparison.",
            rich_help_panel="Output",
        ),
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    json: MetricsJson = False,
) -> None:
    """Compare models on a stream: all predict and learn the same events in one pass.

    All models score the same events and negatives, and each gets the scores that `tgflow run` would
    give it. A model that diverges drops out; the others continue. Writes scores.arrow (each model's
    scores of each event), events.arrow (attributes of each event), metrics.json and report.html:
    the ranking and its significance, the cost of an event, and accuracy by slice and over time.

    With --task the models are compared by the figure of its labels first; those without embeddings
    predict links alone.

    Presets (--preset) choose some settings by the kind of stream, which is measured and printed;
    settings that are given explicitly take precedence.

    With --protocol dyglib/1, tgb/1 or tkg/1 each model is trained offline, in epochs, and compared
    on the test split; --resume keeps finished models and continues from the latest saved epoch.

    [bold]Examples[/bold]

      tgflow compare events.csv -m jodie,tgn,tgn+pairs --seeds 3
      tgflow compare -s events.csv --models tgn,small=tgn --model-set small.memory_dim=32
      tgflow compare -s events.csv --models tgn,graphmixer --frozen-at 0.5
      tgflow compare pay.csv --task edge --target is_fraud -m tgn -m jodie
      tgflow compare -s events.csv --models tgn,jodie --protocol dyglib/1
      tgflow compare -s events.csv --out runs/compared --resume
      tgflow compare --report runs/compared
    """
    from tgflow.cli.comparing import compare_stream, draw_again
    from tgflow.run.directory import ResumeOptions

    if report is not None:
        draw_again(report)
        return
    options = ResumeOptions(resume, stated=stated, overwrite=overwrite)
    compare_stream(config, options, quick=quick, as_json=json)
