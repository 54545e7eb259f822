"""What `tgflow run` does: a continual trainer over a stream, shown, recorded, reported."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from math import nan
from typing import Any

import typer
from rich.console import Console

from tgflow.checkpoint import save
from tgflow.cli import assemble
from tgflow.cli.summary import print_summary
from tgflow.config import Config
from tgflow.graph import TemporalGraph
from tgflow.model import TemporalModel
from tgflow.run.display import Display
from tgflow.run.figures import compact, score
from tgflow.run.machine import describe, peak_rss_bytes, rss_bytes
from tgflow.run.report import continual_report
from tgflow.run.rundir import RunDir, read_records, to_json
from tgflow.streams import EventSource
from tgflow.train.continual import ContinualConfig, ContinualTrainer
from tgflow.units import seconds_per_tick

INTERRUPTED = 130


def learn(config: Config, as_json: bool) -> None:
    """Learn from the stream of `config` and leave a run directory.

    Args:
        config: The run's settings.
        as_json: Print the figures as JSON, not as a table.

    Raises:
        typer.Exit: With code 130 if Ctrl-C ended the stream; what was learnt is kept.
    """
    source = assemble.open_source(config)
    threads = assemble.use_threads(config)
    graph = TemporalGraph(assemble.direction_of(config, source), source.x_dim)
    model = assemble.make_model(config, source.x_dim, source.unit)
    trainer = _trainer(config, graph, model, source.unit)
    rundir = RunDir.choose(config.run.out, assemble.run_name(config))
    rundir.write_config(config)
    interrupted = _learn(trainer, source, config, rundir)
    metrics = {
        "command": "run",
        "stream": config.stream.path,
        "model": config.model.name,
        **trainer.result(),
        "interrupted": interrupted,
        "threads": threads,
        "peak_rss_bytes": peak_rss_bytes(),
        "machine": describe(),
    }
    _finish(trainer, source, metrics, config, rundir)
    if as_json:
        sys.stdout.write(to_json(metrics, indent=2) + "\n")
    else:
        _summary(metrics, rundir)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _trainer(
    config: Config, graph: TemporalGraph, model: TemporalModel, unit: str
) -> ContinualTrainer:
    plan, train = config.plan, config.train
    return ContinualTrainer(
        model,
        graph,
        ContinualConfig(
            seed=config.run.seed,
            batch_size=plan.batch_size,
            updates=train.updates,
            learning_rate=train.learning_rate,
            weight_decay=train.weight_decay,
            grad_clip=train.grad_clip,
            replay_ratio=train.replay_ratio,
            replay_horizon=train.replay_horizon,
            replay_half_life=train.replay_half_life,
            mrr_negatives=plan.mrr_negatives,
            visibility=plan.visibility,
            strategy=plan.strategy,
            span=plan.span,
            seconds_per_tick=seconds_per_tick(unit),
            num_threads=plan.workers,
            lookahead=plan.lookahead,
        ),
    )


def _learn(trainer: ContinualTrainer, source: EventSource, config: Config, rundir: RunDir) -> bool:
    """Learn from the whole stream, showing and recording each step; True if interrupted."""
    feed = assemble.Feed(source, config.stream.limit, config.stream.speed)
    title = f"{config.model.name.upper()} learning from {config.stream.path}"
    start = time.perf_counter()
    with Display(Console(stderr=True), title, feed.num_events) as display:
        try:
            for step in trainer.steps(feed):
                record = {
                    **step.as_dict(),
                    "elapsed": time.perf_counter() - start,
                    "rss_bytes": rss_bytes(),
                    "progress": feed.share(step.stop),
                }
                rundir.log(record)
                display.update(record)
        except KeyboardInterrupt:
            return True
        finally:
            rundir.close()
    return False


def _finish(
    trainer: ContinualTrainer,
    source: EventSource,
    metrics: Mapping[str, Any],
    config: Config,
    rundir: RunDir,
) -> None:
    """Write checkpoint, figures and report."""
    checkpoint = trainer.checkpoint()
    checkpoint.sections["ids"] = source.ids.state()
    checkpoint.meta["model"] = config.model.model_dump()
    save(rundir.checkpoint, checkpoint)
    rundir.write_metrics(metrics)
    path = rundir.path / "metrics.jsonl"
    records = read_records(path) if path.exists() else []
    rundir.write_report(continual_report(records, metrics, config))


def _summary(metrics: Mapping[str, Any], rundir: RunDir) -> None:
    rows = [
        ("AP", score(metrics.get("prequential.ap", nan)), score(metrics.get("test.ap", nan))),
        ("AUC", score(metrics.get("prequential.auc", nan)), score(metrics.get("test.auc", nan))),
        ("MRR", score(metrics.get("prequential.mrr", nan)), score(metrics.get("test.mrr", nan))),
    ]
    print_summary(
        ("", "all events", "last 15 %"),
        rows,
        f"{metrics['num_events']:,} events, {metrics['num_nodes']:,} nodes, "
        f"{compact(metrics['events_per_second'])} events/s, "
        f"visibility {metrics['visibility']}, seed {metrics['seed']}",
        rundir.path,
    )
