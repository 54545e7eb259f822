"""`tgflow train`: offline training under the published protocol."""

from __future__ import annotations

import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import nan
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from tgflow.base.choices import METRIC_TITLES
from tgflow.base.units import duration
from tgflow.cli.errors import hint
from tgflow.cli.nproc import Nproc, is_started, train_ranks
from tgflow.cli.options import (
    RANKS_IN_STEP,
    STREAM_OF_FILES,
    MetricsJson,
    Overwrite,
    Resume,
    with_config,
)
from tgflow.report.board import board_row
from tgflow.report.formatting import compact, reuse_line, score
from tgflow.report.label_figures import task_of
from tgflow.report.table_text import print_feature_tables, print_labels, print_summary
from tgflow.run.config import LEARNING_OF, Config, ConfigError, plain, replaced
from tgflow.run.page import offline_report
from tgflow.run.records import run_name, to_json

if TYPE_CHECKING:
    from tgflow.checkpoint import Checkpoint, Component
    from tgflow.ranks.broadcast import Lead
    from tgflow.run.directory import RunDirectory
    from tgflow.train.config import OfflineConfig
    from tgflow.train.observe import Callback

SETTINGS = (
    *STREAM_OF_FILES, "graph", "model", "task", *LEARNING_OF["offline"], "reuse", "tables", "run",
    "checkpoint.checkpoint_every", "operate.log_to", *RANKS_IN_STEP,
)  # fmt: skip

COMMAND: Final = "train"
"""Name of the trainer in checkpoints."""
PER_RUN = ("seed", "best_epoch", "num_epochs")
"""Figures that are not averaged over seeds."""


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
      tgflow train --data u.csv --log-to tensorboard
      tgflow train --data pay.csv --features amount --task edge --target is_fraud
    """
    if nproc is not None and not is_started():
        raise typer.Exit(train_ranks(context.obj, nproc))
    from tgflow.cli.rank_setup import join_ranks, slice_per_rank
    from tgflow.cli.train_seeds import follow
    from tgflow.ranks.broadcast import Lead
    from tgflow.run.directory import ResumeOptions, RunDirectory

    config = replaced(config, slice_per_rank(stated))
    options = ResumeOptions(resume, stated=stated, overwrite=overwrite)
    with join_ranks(config, options, seeds=seeds) as peers:
        if peers.rank > 0:
            follow(peers, seeds or 1)
            return
        with Lead(peers) as lead:
            name = run_name(config.stream.path, config.model.name)
            directory = RunDirectory.find(config, f"{name}-offline", options, COMMAND, peers.world)
            try:
                metrics = _train(directory, seeds, lead)
            finally:
                directory.release()
    if json:
        sys.stdout.write(to_json(metrics, indent=2) + "\n")
    else:
        _print(metrics, directory.path, directory.config.offline)


def _train(directory: RunDirectory, num_seeds: int | None, lead: Lead) -> dict[str, Any]:
    import numpy as np

    from tgflow.cli import inputs
    from tgflow.cli.train_seeds import EpochLog, SavedSeeds, fit, read_inputs
    from tgflow.report.compare.offline import OfflineResults, Trained
    from tgflow.run import features
    from tgflow.run.checkpoints import SavedRecords
    from tgflow.run.restore import current_build, open_results
    from tgflow.streams.tgb import read_about
    from tgflow.train.observe import Callback
    from tgflow.train.progress_bar import ProgressBar

    # open the stream
    found = directory.newest_meta().get("trainer", COMMAND) if directory.resumed else COMMAND
    if found != COMMAND:
        command = "compare" if found == "compare" else "run"
        raise ConfigError(
            f"{directory.path} belongs to tgflow {command}; resume it with tgflow {command} "
            "--resume, or give another --out"
        )
    metrics = directory.files.read_json("metrics.json") if directory.resumed else None
    if metrics is not None:
        return metrics
    opened = read_inputs(directory, lead)
    graph, console = opened.graph, Console(stderr=True)
    with inputs.logged(directory, COMMAND, console) as run_log:
        # build the results, which a resume continues
        config, peers = directory.config, lead.peers
        results, seeds = OfflineResults(), SavedSeeds(num_seeds)
        if peers.world == 1:
            build = current_build(opened.threads, opened.device)

            def components(newest: Checkpoint | None) -> list[Component]:
                seeds.load(newest)
                return [SavedRecords(directory.files, newest, run_log), seeds]

            results = open_results(directory, graph, COMMAND, build, run_log, components)
        epochs = EpochLog(console, config.offline, directory.files, features.HitRates(graph))
        bar: AbstractContextManager[Callback] = nullcontext(Callback())
        if console.is_terminal:
            bar = ProgressBar(console=console)
        # loop
        with bar as epochs.bar:
            for number in range(seeds.num):
                epochs.seed = config.offline.seed + number
                if results.find(number, str(epochs.seed)) is None:
                    folder = Path(str(epochs.seed) if seeds.num > 1 else "")
                    begin = perf_counter()
                    result = fit(directory, opened, peers, results, epochs, folder)
                    result["wall_seconds"] = perf_counter() - begin
                    results.add(Trained(str(epochs.seed), np.empty((0, 3)), result))
        # report
        about = read_about(config.stream.path or "")
        positive = getattr(opened.labels, "positive", None)
        metrics = {
            "command": COMMAND,
            "stream": config.stream.path,
            "model": config.model.name,
            **config.label_facts,
            **({} if positive is None else {"label_target": "label", "label_positive": positive}),
            **average([each.result for each in results.trained]),
            **({"features": opened.about_features} if opened.about_features else {}),
            **({"data_set": about} if about else {}),
            "tables": features.table_figures(graph),
            **inputs.machine_figures(opened.threads, opened.device),
        }
        if graph.edge_x is not None:
            graph.edge_x.close()
        report = offline_report(epochs.records, metrics, config.offline, plain(config))
        directory.files.write("report.html", report)
        directory.files.write_json("metrics.json", metrics)
        shutil.rmtree(directory.path / "checkpoints", ignore_errors=True)
        run_log.info("end", "done", exit_code=0)
    return metrics


def average(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of each figure of several runs, its deviation as `KEY_std`, and the runs."""
    if len(results) == 1:
        return {"num_seeds": 1, **results[0]}
    out: dict[str, Any] = {
        "num_seeds": len(results),
        "seeds": [result["seed"] for result in results],
    }
    for key, value in results[0].items():
        values = [result[key] for result in results if key in result]
        if key in PER_RUN or len(values) < len(results):
            continue
        if isinstance(value, float):
            out[key] = statistics.fmean(values)
            out[f"{key}_std"] = statistics.stdev(values)
        else:
            out[key] = value
    return out | {"runs": [dict(result) for result in results]}


def _print(metrics: Mapping[str, Any], path: Path, config: OfflineConfig) -> None:
    parts = ("val", "test", "inductive.test")
    names = dict.fromkeys((config.select_metric, "ap", "auc", "mrr", *config.metric_names))
    rows = [
        (METRIC_TITLES.get(key, key), *(_figure(metrics, f"{part}.{key}") for part in parts))
        for key in names
    ]
    seeds = metrics.get("seeds") or [metrics["seed"]]
    reuses = "reuse.reused" in metrics
    board = board_row(metrics)
    print_labels(metrics)
    print_summary(
        ("links" if task_of(metrics) else "", "validation", "test", "test, new nodes"),
        rows,
        f"{metrics['model']}, {metrics['num_events']:,} events, "
        f"{metrics['num_nodes']:,} nodes, "
        f"{duration(metrics['epoch_seconds'])} an epoch, "
        f"{compact(metrics['events_per_second'])} events/s, visibility {metrics['visibility']}, "
        f"tested with {metrics['test_negatives']} negatives, seeds {', '.join(map(str, seeds))}\n"
        f"{metrics['protocol_line']}"
        + (f"\n{reuse_line(metrics)}" if reuses else "")
        + ("" if board is None else f"\nrow of {metrics['data_set']['board']}: {board[1]}"),
        path,
    )
    for line in metrics.get("features", {}).values():
        hint(line)
    print_feature_tables(metrics["tables"])


def _figure(metrics: Mapping[str, Any], key: str) -> str:
    deviation = metrics.get(f"{key}_std")
    return score(metrics.get(key, nan)) + (f" ± {deviation:.4f}" if deviation is not None else "")
