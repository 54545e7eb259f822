"""What `tgflow run` does: a continual trainer over a stream, shown, recorded, saved, reported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import nan
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from tgflow.choices import METRIC_TITLES
from tgflow.cli import assemble
from tgflow.cli.assemble import warn_of_first
from tgflow.cli.errors import IO, exit_code, explain, hint, mark_reported
from tgflow.cli.ranks import check_rank_tables, check_ranks, follow, join_ranks, with_slices
from tgflow.config import Config
from tgflow.peers import Peers
from tgflow.report.formatting import compact, score
from tgflow.report.page import continual_report
from tgflow.report.table_text import (
    RUN_FILES,
    print_feature_tables,
    print_labels,
    print_scores,
    print_stream,
    print_summary,
)
from tgflow.runtime.briefing import Lead
from tgflow.runtime.build import RunInputs, open_runner
from tgflow.runtime.directory import ResumeOptions, RunDirectory, learn_again
from tgflow.runtime.files import RunFiles, read_records, run_name, to_json
from tgflow.runtime.gpu import describe_device, device_figures
from tgflow.runtime.log import RunLog
from tgflow.runtime.machine import describe, peak_rss_bytes
from tgflow.runtime.model_maker import make_model
from tgflow.runtime.runner import RunResult
from tgflow.runtime.saved_run import with_initial_model
from tgflow.runtime.stream import FlowControl, StopSignals
from tgflow.streams.errors import TooManyBadRecords
from tgflow.tables import DamagedFile

MOST_RECORDS = 20_000
"""Micro-batches that the report draws from, evenly spaced."""


def learn(config: Config, options: ResumeOptions, as_json: bool) -> None:
    """Learn from the stream of `config` and leave a run directory.

    Args:
        config: The run's settings; of one that resumes, those it started with come first.
        options: Whether to resume, and how.
        as_json: Print the figures as JSON, not as a table.
    """
    stated = options.stated or {}
    if config.start.init_from is not None:
        config = with_initial_model(config, stated)
    config = with_slices(config, stated, "continual")
    flow = FlowControl()
    with StopSignals(flow.stop_for), join_ranks(config, options, "continual") as peers:
        if peers.rank == 0:
            _lead(config, options, as_json, flow, peers)
        else:
            follow(peers, flow)


def _lead(
    config: Config, options: ResumeOptions, as_json: bool, flow: FlowControl, peers: Peers
) -> None:
    """Learn as the only process, or as that which the others follow."""
    with Lead(peers) as lead:
        directory = RunDirectory.find(config, run_name(config), options)
        try:
            slices = directory.config.continual.slices
            check_ranks(directory.config, slices, peers.world, resumed=directory.resumed)
            _learn(directory, as_json, flow, lead)
        finally:
            directory.release()


def _learn(directory: RunDirectory, as_json: bool, flow: FlowControl, lead: Lead) -> None:
    source, direction, device, threads, nodes = assemble.open_live(directory)
    config = directory.config
    if not directory.resumed:
        warn_of_first(config)
    check_rank_tables(config, source.x_dim, lead.peers.world)
    node_x_dim = assemble.dim_of(nodes)
    inputs = RunInputs(
        source,
        direction,
        make_model(config, config.continual, source.x_dim, device, node_x_dim=node_x_dim),
        threads,
        device,
        lead=lead,
        nodes=nodes,
    )
    console = Console(stderr=True)
    with directory:
        run_log = RunLog(directory.path / "run.log", config.operate.log_format, printer(console))
        with failing_run(directory.path, run_log, "run"):
            result = open_runner(directory, inputs, run_log, flow, console).run()
            metrics = _metrics(result, config, threads, device)
            _write_report(directory.files, metrics, result, config, run_log)
        run_log.info("end", "stopped" if result.stopped else "done", exit_code=0)
        run_log.close()
    if as_json:
        sys.stdout.write(to_json(metrics, indent=2) + "\n")
    else:
        _summary(metrics, result, directory, config.continual.metric_names)


@contextmanager
def failing_run(path: Path, run_log: RunLog, command: str) -> Iterator[None]:
    """Log the error that ends a run, with the way out.

    Args:
        path: The run's directory.
        run_log: Gets what is logged.
        command: What resumes it.
    """
    try:
        yield
    except Exception as error:
        text = explain(error)
        if exit_code(error) == IO:
            way_out = f"tgflow {command} --resume --out {path}"
            text += f"; once that is fixed, resume with: {way_out}"
        if isinstance(error, TooManyBadRecords):
            text += f"; the rows, and what is wrong with each, are in {path / 'dead-letters'}"
        if isinstance(error, DamagedFile):
            text += f"; bring it back from a copy, or {learn_again(path, 'it')}"
        run_log.error("end", text, exit_code=exit_code(error))
        mark_reported(error, text)
        raise


@contextmanager
def interruptible(path: Path, console: Console, command: str) -> Iterator[None]:
    """Say how to go on where somebody has interrupted what goes on from epoch to epoch.

    Args:
        path: The run's directory.
        console: Says it.
        command: What resumes it.
    """
    try:
        yield
    except KeyboardInterrupt:
        text = f"stopped; resume with: tgflow {command} --resume --out {path}"
        console.print(text, markup=False, soft_wrap=True)
        raise


def printer(console: Console) -> Callable[[str], None]:
    """Return what prints a line as it is, above a live display."""
    return lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)


def _metrics(
    result: RunResult, config: Config, threads: int, device: torch.device
) -> dict[str, Any]:
    stream = result.reports["stream"]
    counts = stream["counts"]
    return {
        "command": "run",
        "stream": config.stream.path,
        "model": config.model.name,
        **result.metrics,
        "interrupted": result.stopped,
        "state_sha256": result.state_sha256,
        "rows": {name: value for name, value in counts.items() if isinstance(value, int)},
        "refused": counts["refused"],
        "num_waiting": stream.get("num_waiting", 0),
        **({"scores": result.reports["scores"]} if "scores" in result.reports else {}),
        **({"features": said} if (said := result.reports["features"]) else {}),
        "tables": result.tables,
        **({"ranks": result.reports["ranks"]} if "ranks" in result.reports else {}),
        "threads": threads,
        "peak_rss_bytes": peak_rss_bytes(),
        **device_figures(device),
        "machine": describe() | describe_device(device),
    }


def _write_report(
    files: RunFiles,
    metrics: Mapping[str, Any],
    result: RunResult,
    config: Config,
    run_log: RunLog,
) -> None:
    files.write_metrics(metrics)
    records = read_records(files.records, MOST_RECORDS)
    if records.num_damaged:
        text = f"{records.num_damaged} lines of {files.records} are damaged; figures leave them out"
        run_log.warning("records", text)
    page = continual_report(
        records.kept, metrics, config, result.reports["stream"], records.num_damaged
    )
    files.write_report(page)


def _summary(
    metrics: Mapping[str, Any],
    result: RunResult,
    directory: RunDirectory,
    own_metrics: Sequence[str],
) -> None:
    rows = [
        (
            name,
            score(metrics.get(f"prequential.{key}", nan)),
            score(metrics.get(f"test.{key}", nan)),
        )
        for key, name in (METRIC_TITLES | {own: own for own in own_metrics}).items()
        if key != "mrr_hist" or "prequential.mrr_hist" in metrics
    ]
    print_summary(
        ("", "all events", "last 15 %"),
        rows,
        f"{metrics['model']}, {metrics['num_events']:,} events, {metrics['num_nodes']:,} nodes, "
        f"{compact(metrics['events_per_second'])} events/s, "
        f"visibility {metrics['visibility']}, seed {metrics['seed']}\n"
        f"{metrics['protocol_line']}",
        directory.path,
        RUN_FILES,
    )
    print_labels(metrics)
    for line in metrics.get("features", {}).values():
        hint(line)
    print_feature_tables(result.tables)
    print_stream(result.reports["stream"], directory.path / "dead-letters")
    if "scores" in result.reports:
        print_scores(result.reports["scores"])
    if result.stopped:
        text = f"stopped; resume with: tgflow run --resume --out {directory.path}"
        Console(soft_wrap=True, highlight=False).print(text, style="bold")
