"""`tgflow train`: offline training under the published protocol."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tgflow.cli.nproc import Nproc, is_started, train_ranks
from tgflow.cli.options import (
    RANKS_IN_STEP,
    STREAM_OF_FILES,
    MetricsJson,
    Overwrite,
    Resume,
    with_config,
)
from tgflow.run.config import LEARNING_OF, Config

SETTINGS = (
    *STREAM_OF_FILES, "graph", "model", "task", *LEARNING_OF["offline"], "reuse", "tables", "run",
    "checkpoint.checkpoint_every", "operate.log_to", *RANKS_IN_STEP,
)  # fmt: skip


@with_config(SETTINGS, is_long=True)
def train(
    config: Config,
    stated: dict[str, Any],
    *,
    context: typer.Context,
    nproc: Nproc = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds", min=1, help="Train N times, with seeds --seed, --seed + 1, ...; default: 1"
        ),
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    json: MetricsJson = False,
) -> None:
    """Train offline: 70 % of the stream for training, 15 % for validation, 15 % for testing.

    This is the protocol of most published results (DyGLib's defaults: batches of 200, Adam at 1e-4,
    at most 100 epochs, patience 20). Writes metrics.json, metrics.jsonl (one line per epoch),
    checkpoint/ and report.html. With several seeds, metrics are means over them. The default model
    is tgn+pairs; -m tgn selects the model of the paper.

    A training that was killed continues with --resume from the latest saved epoch (see
    --checkpoint-every) and ends with exactly the same model. Training with several processes
    (--nproc) saves nothing until it is done.

    [bold]Examples[/bold]

      tgflow train examples/data/collegemsg.csv.gz --model tgn
      tgflow train --data enron.csv.gz --out runs/enron --resume
      tgflow train --data enron.csv.gz -m tgat --epochs 5 --seeds 3 --json
      tgflow train pay.csv --features amount --feature-scale auto
      tgflow train --data u.csv --edge-table disk --edge-cache 10%
      tgflow train --data wikipedia.csv.gz --model tgat --reuse-staleness 8
      tgflow train --data wikipedia.csv.gz --batch-size 1000 --nproc 2
      tgflow train --data u.csv --test-negatives random --test-negatives historical
      tgflow train --data u.csv --log-to tensorboard --log-to csv
      tgflow train --data pay.csv --features amount --task edge --target is_fraud
    """
    if nproc is not None and not is_started():
        raise typer.Exit(train_ranks(context.obj, nproc))
    from tgflow.cli.offline import train_offline
    from tgflow.run.directory import ResumeOptions

    train_offline(config, seeds, json, ResumeOptions(resume, stated=stated, overwrite=overwrite))
