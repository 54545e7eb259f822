"""What `tgflow compare` does: a comparison over a stream, shown, recorded, saved, reported."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from tgflow.cli import assemble
from tgflow.cli.continual import failing_run, printer
from tgflow.cli.errors import NO_INPUT, CliError
from tgflow.cli.lineup import ModelChoice, chosen, entrants, freezing_point, stream_facts
from tgflow.compare.analysis import Analysis
from tgflow.compare.comparison import Comparison
from tgflow.compare.facts import event_facts
from tgflow.compare.offline import compare_offline
from tgflow.compare.outcome import SUMMARY, Outcome
from tgflow.compare.page import comparison_page
from tgflow.config import Config, ConfigError
from tgflow.graph import TemporalGraph
from tgflow.presets import StreamFacts
from tgflow.report.formatting import compact, score
from tgflow.report.table_text import print_stream, print_summary
from tgflow.runtime.build import RunInputs, open_run
from tgflow.runtime.directory import ResumeOptions, RunDirectory
from tgflow.runtime.features import check_tables
from tgflow.runtime.files import RunFiles, run_name, to_json
from tgflow.runtime.gpu import (
    describe_device,
    device_figures,
    execution_config,
    graph_gpu,
    use_device,
)
from tgflow.runtime.log import RunLog
from tgflow.runtime.machine import describe, peak_rss_bytes
from tgflow.runtime.runner import RunResult
from tgflow.runtime.signals import StopSignals
from tgflow.runtime.stream import FlowControl
from tgflow.train.config import OfflineConfig, TrainingConfig
from tgflow.units import seconds_per_tick

FILES = {
    "report.html": "who is ahead, and is it chance; open it in a browser",
    "metrics.json": "all figures",
    "scores.arrow": "every event by every model",
    "config.toml": "these settings, for --config",
}


def compare_stream(config: Config, options: ResumeOptions, *, quick: bool, as_json: bool) -> None:
    """Compare models on the stream of `config` and leave a run directory.

    Args:
        config: The settings; of one that resumes, those it started with come first.
        options: Whether to resume.
        quick: Compare what is done in minutes.
        as_json: Print the figures as JSON, not as a table.
    """
    if quick:
        config = replace(config, compare=replace(config.compare, models="quick"))
    if config.compare.protocol in ("dyglib/1", "tgb/1"):
        compare_trained(config, options, as_json=as_json)
        return
    flow = FlowControl()
    with StopSignals(flow.stop_for):
        directory = RunDirectory.find(config, _name(config), options)
        try:
            _compare(directory, as_json, flow)
        finally:
            directory.release()


def _compare(directory: RunDirectory, as_json: bool, flow: FlowControl) -> None:
    config = directory.config
    source, direction, device, threads = assemble.open_live(directory)
    facts = None if config.compare.preset == "none" else stream_facts(config)
    choices = chosen(config, facts)
    lineup = list(entrants(config, choices, source.x_dim, device, freezing_point(config)))
    inputs = RunInputs(
        source,
        direction,
        lineup,
        threads,
        device,
        title=f"{len(choices)} models",
    )
    console = Console(stderr=True)
    with directory:
        run_log = RunLog(directory.path / "run.log", config.operate.log_format, printer(console))
        preset = _preset_line(config, facts, choices)
        run_log.info("preset", preset)
        console.print(preset, markup=False, highlight=False, soft_wrap=True)
        with failing_run(directory.path, run_log, "compare"):
            runner = open_run(directory, inputs, run_log, flow, console)
            result = runner.run()
            assert isinstance(runner.trainer, Comparison)
            outcome = _outcome(runner.trainer, result, config, preset, threads, device)
            analysis = _write(directory.files, outcome, config.continual.batch_size)
        run_log.info("end", "stopped" if result.stopped else "done", exit_code=0)
        run_log.close()
    if as_json:
        sys.stdout.write(to_json(outcome.summary, indent=2) + "\n")
    else:
        _summary(analysis, result, directory)


def compare_trained(config: Config, options: ResumeOptions, *, as_json: bool) -> None:
    """Train models offline on the stream of `config`, and compare them on its last part.

    Raises:
        ConfigError: If it is to resume, or to freeze copies, which only a stream can.
    """
    for flag, is_set in (("--resume", options.resume), ("--frozen-at", config.compare.frozen_at)):
        if is_set:
            raise ConfigError(
                f"{flag}: --protocol {config.compare.protocol} trains offline; leave one out"
            )
    config = replace(config, offline=_offline(config, options.stated or {}))
    device, threads = use_device(config), assemble.use_threads(config)
    source = assemble.open_source(config)
    check_tables(config, source.x_dim, live=False)
    files = RunFiles.choose(config.run.out, _name(config))
    facts = None if config.compare.preset == "none" else stream_facts(config)
    choices = chosen(config, facts)
    graph = assemble.read_graph(config, source, gpu=graph_gpu(config, device))
    console = Console(stderr=True)
    preset = _preset_line(config, facts, choices)
    console.print(preset, markup=False, highlight=False, soft_wrap=True)
    files.make()
    files.write_config(config)

    def say(key: str, result: Mapping[str, Any]) -> None:
        console.print(f"{key}  test AP {score(result.get('test.ap', np.nan))}", markup=False)

    offline = replace(config, continual=replace(config.continual, seed=config.offline.seed))
    lineup = entrants(offline, choices, source.x_dim, device, None)
    outcome = compare_offline(
        lineup,
        graph,
        config.offline,
        execution=execution_config(config),
        ids=source.ids,
        on_result=say,
    )
    common = _common(config, graph, preset, threads, device)
    summary = {**common, **outcome.summary, "batch_size": config.offline.batch_size}
    outcome = replace(outcome, summary=summary)
    analysis = _write(files, outcome, config.offline.batch_size)
    if as_json:
        sys.stdout.write(to_json(outcome.summary, indent=2) + "\n")
    else:
        _print_leaders(analysis, files.path)


def _offline(config: Config, stated: Mapping[str, Any]) -> OfflineConfig:
    """Return the settings of offline training: what is said of learning is said of it, too."""
    names = (key.removeprefix("continual.") for key in stated if key.startswith("continual."))
    common = {field.name for field in fields(TrainingConfig)}
    values = {name: getattr(config.continual, name) for name in names if name in common}
    return replace(config.offline, **values)


def _name(config: Config) -> str:
    """Return what a comparison is called where nobody named it."""
    return run_name(config).removesuffix(config.model.name) + "compare"


def draw_again(path: Path) -> None:
    """Draw the page of a comparison that was made before.

    Raises:
        CliError: If there is none.
    """
    try:
        outcome = Outcome.read(path)
    except FileNotFoundError:
        raise CliError(
            f"{path} has no comparison that came to an end; make one: tgflow compare --out {path}",
            NO_INPUT,
        ) from None
    analysis = Analysis(outcome, int(outcome.summary["batch_size"]))
    RunFiles(path, resumed=True).write_report(comparison_page(analysis))
    Console(soft_wrap=True, highlight=False).print(f"{path / 'report.html'} is drawn", markup=False)


def _preset_line(config: Config, facts: StreamFacts | None, choices: list[ModelChoice]) -> str:
    if facts is None:
        return "no preset"
    wanted = config.compare.preset
    family = facts.family if wanted == "auto" else wanted
    sets = [
        f"{choice.label}.{key}={float(f'{value:.4g}') if isinstance(value, float) else value}"
        for choice in choices
        for key, value in choice.preset.items()
    ]
    return f"preset {family} (stream measured: {facts.line()}) sets {', '.join(sets) or 'nothing'}"


def _outcome(
    trainer: Comparison,
    result: RunResult,
    config: Config,
    preset: str,
    threads: int,
    device: torch.device,
) -> Outcome:
    stop = trainer.position
    scores = {each.key: _padded(each.scores.rows.numpy(), stop) for each in trainer.participants}
    stream = result.reports["stream"]
    summary = {
        **_common(config, trainer.graph, preset, threads, device),
        **result.metrics,
        "batch_size": config.continual.batch_size,
        "interrupted": result.stopped,
        "state_sha256": result.state_sha256,
        "num_waiting": stream.get("num_waiting", 0),
        "tables": result.tables,
    }
    return Outcome(event_facts(trainer.graph, 0, stop), scores, summary)


def _common(
    config: Config, graph: TemporalGraph, preset: str, threads: int, device: torch.device
) -> dict[str, Any]:
    """Return what the figures of every comparison say of stream and machine."""
    return {
        "command": "compare",
        "stream": config.stream.path,
        "preset_line": preset,
        "seconds_per_tick": seconds_per_tick(graph.time_unit),
        "threads": threads,
        "peak_rss_bytes": peak_rss_bytes(),
        **device_figures(device),
        "machine": describe() | describe_device(device),
    }


def _padded(rows: Any, size: int) -> Any:
    """Return scores of all events: those that were not scored are NaN."""
    out = np.full((size, rows.shape[1]), np.nan, dtype=rows.dtype)
    out[: len(rows)] = rows
    return out


def _write(files: RunFiles, outcome: Outcome, batch_size: int) -> Analysis:
    files.write_json(SUMMARY, outcome.summary)
    outcome.write(files.path)
    analysis = Analysis(outcome, batch_size)
    if analysis.num_events:
        files.write_report(comparison_page(analysis))
    return analysis


def _summary(analysis: Analysis, result: RunResult, directory: RunDirectory) -> None:
    _print_leaders(analysis, directory.path)
    print_stream(result.reports["stream"], directory.path / "dead-letters")
    if result.stopped:
        console = Console(soft_wrap=True, highlight=False)
        console.print(f"stopped; resume with: tgflow compare --resume --out {directory.path}")


def _print_leaders(analysis: Analysis, path: Path) -> None:
    """Print the leaderboard, and who dropped out."""
    summary: Mapping[str, Any] = analysis.outcome.summary
    rows = []
    if analysis.num_events:
        ap = analysis.ap.means
        rows = [
            (
                f"{label} ({analysis.mrr.letters[label]})",
                score(interval.mean),
                f"{interval.low:.4f} to {interval.high:.4f}",
                score(ap[label].mean),
                compact(analysis.cost(label)),
            )
            for label, interval in analysis.mrr.means.items()
        ]
    print_summary(
        ("model", "MRR", "95 %", "AP", "µs an event"),
        rows,
        f"{analysis.num_events:,} events are compared, of {summary['num_events']:,} among "
        f"{summary['num_nodes']:,} nodes; models that share a letter are not told apart\n"
        f"{summary['protocol_line']}",
        path,
        FILES,
    )
    console = Console(soft_wrap=True, highlight=False)
    for key, failure in analysis.failures().items():
        console.print(f"{key} dropped out: {failure['reason']}", markup=False)
