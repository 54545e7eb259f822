"""What `tgflow run` does: a continual trainer over a stream, shown, recorded, kept, reported."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from math import nan
from typing import Any

from rich.console import Console

from tgflow.cli import assemble
from tgflow.cli.errors import IO, exit_code, explain, mark_reported
from tgflow.config import Config
from tgflow.report.formatting import compact, score
from tgflow.report.page import continual_report
from tgflow.report.table_text import RUN_FILES, print_feature_tables, print_stream, print_summary
from tgflow.runtime.build import RunInputs, Session, open_session
from tgflow.runtime.directory import ResumeOptions, RunDirectory
from tgflow.runtime.edge_table import check_own
from tgflow.runtime.features import check_tables
from tgflow.runtime.files import RunFiles, read_records, to_json
from tgflow.runtime.log import RunLog
from tgflow.runtime.machine import describe, peak_rss_bytes
from tgflow.runtime.runner import RunResult, run
from tgflow.runtime.signals import StopSignals
from tgflow.runtime.stream import FlowControl

MOST_RECORDS = 20_000
"""Micro-batches that the report draws from, evenly spaced."""


def learn(config: Config, wish: ResumeOptions, as_json: bool) -> None:
    """Learn from the stream of `config` and leave a run directory.

    Args:
        config: The run's settings; of one that goes on, those it began with come first.
        wish: Whether to go on, and how.
        as_json: Print the figures as JSON, not as a table.
    """
    valve = FlowControl()
    with StopSignals(valve.ask):
        place = RunDirectory.find(config, assemble.run_name(config), wish)
        try:
            _learn(place, as_json, valve)
        finally:
            place.release()


def _learn(place: RunDirectory, as_json: bool, valve: FlowControl) -> None:
    config = place.config
    assemble.check_together(config)
    threads = assemble.use_threads(config)
    source = assemble.open_partitioned(config)
    check_tables(config, source.x_dim, live=True)
    check_own(place)
    inputs = RunInputs(
        source,
        "bipartite" if source.ids.bipartite else config.graph.direction,
        assemble.make_model(config, config.continual, source.x_dim),
        threads,
    )
    if hasattr(source, "stop"):
        source.stop = lambda: valve.stopped  # so that to wait for a broker can be ended
    console = Console(stderr=True)
    with place:
        notes = RunLog(place.path / "run.log", config.operate.log_format, _sayer(console))
        try:
            session = open_session(place, inputs, notes, valve)
            ended = run(session, console)
            metrics = _metrics(session, ended, config, threads)
            _write_report(place.rundir, metrics, ended, config)
        except Exception as error:
            text = explain(error)
            if exit_code(error) == IO:
                text += f"; once that is fixed, resume with: tgflow run --resume --out {place.path}"
            notes.error("end", text, exit_code=exit_code(error))
            mark_reported(error)
            raise
        notes.info("end", "stopped" if ended.stopped else "done", exit_code=0)
        notes.close()
    if as_json:
        sys.stdout.write(to_json(metrics, indent=2) + "\n")
    else:
        _summary(metrics, ended, place)


def _sayer(console: Console) -> Any:
    """Return what prints a line as it is, above a live display."""
    return lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)


def _metrics(session: Session, ended: RunResult, config: Config, threads: int) -> dict[str, Any]:
    counts = ended.stream["counts"]
    return {
        "command": "run",
        "stream": config.stream.path,
        "model": config.model.name,
        **session.trainer.result(),
        "interrupted": ended.stopped,
        "state_sha256": ended.state_sha256,
        "rows": {name: value for name, value in counts.items() if isinstance(value, int)},
        "refused": counts["refused"],
        "num_waiting": ended.stream.get("num_waiting", 0),
        "tables": ended.tables,
        "threads": threads,
        "peak_rss_bytes": peak_rss_bytes(),
        "machine": describe(),
    }


def _write_report(
    rundir: RunFiles, metrics: Mapping[str, Any], ended: RunResult, config: Config
) -> None:
    rundir.write_metrics(metrics)
    records = read_records(rundir.records, MOST_RECORDS) if rundir.records.exists() else []
    rundir.write_report(continual_report(records, metrics, config, ended.stream))


def _summary(metrics: Mapping[str, Any], ended: RunResult, place: RunDirectory) -> None:
    rows = [
        ("AP", score(metrics.get("prequential.ap", nan)), score(metrics.get("test.ap", nan))),
        ("AUC", score(metrics.get("prequential.auc", nan)), score(metrics.get("test.auc", nan))),
        ("MRR", score(metrics.get("prequential.mrr", nan)), score(metrics.get("test.mrr", nan))),
    ]
    how_to_go_on = f"stopped; resume with: tgflow run --resume --out {place.path}"
    print_summary(
        ("", "all events", "last 15 %"),
        rows,
        f"{metrics['num_events']:,} events, {metrics['num_nodes']:,} nodes, "
        f"{compact(metrics['events_per_second'])} events/s, "
        f"visibility {metrics['visibility']}, seed {metrics['seed']}",
        place.path,
        RUN_FILES,
    )
    print_feature_tables(ended.tables)
    print_stream(ended.stream, place.path / "dead-letters")
    if ended.stopped:
        Console(soft_wrap=True, highlight=False).print(how_to_go_on, style="bold")
