"""What `tgflow compare` does: a comparison over a stream, shown, recorded, saved, reported."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from tgflow.cli import assemble
from tgflow.cli.chosen_preset import cuts_at_steps, stream_facts
from tgflow.cli.compared import common_figures, preset_line, print_leaders, write_outcome
from tgflow.cli.comparing_offline import compare_trained, is_offline, with_offline
from tgflow.cli.continual import failing_run, printer
from tgflow.cli.errors import CORRUPT, NO_INPUT, CliError
from tgflow.cli.hints import hint
from tgflow.cli.lineup import chosen, entrants, freezing_point
from tgflow.compare.analysis import Analysis
from tgflow.compare.comparison import Comparison
from tgflow.compare.facts import event_facts
from tgflow.compare.outcome import SUMMARY, Outcome, OutcomeDamaged
from tgflow.compare.page import comparison_page
from tgflow.config import Config
from tgflow.report.table_text import print_stream
from tgflow.runtime.build import RunInputs, open_runner
from tgflow.runtime.checked_json import DamagedJson
from tgflow.runtime.directory import ResumeOptions, RunDirectory
from tgflow.runtime.files import RunFiles, read_figures, run_name, to_json
from tgflow.runtime.log import RunLog
from tgflow.runtime.runner import RunResult
from tgflow.runtime.signals import StopSignals
from tgflow.runtime.stream import FlowControl


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
    if is_offline(config):
        config, options = with_offline(config, options)
    directory = RunDirectory.find(config, _name(config), options)
    try:
        if is_offline(directory.config):
            compare_trained(directory, as_json=as_json)
            return
        flow = FlowControl()
        with StopSignals(flow.stop_for):
            _compare(directory, as_json, flow)
    finally:
        directory.release()


def _compare(directory: RunDirectory, as_json: bool, flow: FlowControl) -> None:
    source, direction, device, threads, nodes = assemble.open_live(directory)
    config = directory.config
    facts = stream_facts(config)
    choices = chosen(config, facts)
    x_dims = (source.x_dim, assemble.dim_of(nodes))
    lineup = list(entrants(config, choices, x_dims, device, freezing_point(config)))
    inputs = RunInputs(
        source,
        direction,
        lineup,
        threads,
        device,
        title=f"{len(choices)} models",
        cut_at_steps=cuts_at_steps(config, facts),
        nodes=nodes,
    )
    console = Console(stderr=True)
    with directory:
        run_log = RunLog(directory.path / "run.log", config.operate.log_format, printer(console))
        preset = preset_line(config, facts, choices)
        run_log.info("preset", preset)
        console.print(preset, markup=False, highlight=False, soft_wrap=True)
        with failing_run(directory.path, run_log, "compare"):
            runner = open_runner(directory, inputs, run_log, flow, console)
            result = runner.run()
            assert isinstance(runner.trainer, Comparison)
            outcome = _outcome(runner.trainer, result, config, preset, inputs)
            analysis = write_outcome(directory.files, outcome, config.continual.batch_size)
        run_log.info("end", "stopped" if result.stopped else "done", exit_code=0)
        run_log.close()
    if as_json:
        sys.stdout.write(to_json(outcome.summary, indent=2) + "\n")
    else:
        _summary(analysis, result, directory)


def _name(config: Config) -> str:
    """Return what a comparison is called where nobody named it."""
    return run_name(config).removesuffix(config.model.name.removesuffix("+pairs")) + "compare"


def draw_again(path: Path) -> None:
    """Draw the page of a comparison that was made before.

    Raises:
        CliError: If there is none, or its files are damaged.
    """
    try:
        read_figures(path / SUMMARY)
        outcome = Outcome.read(path)
    except (DamagedJson, OutcomeDamaged) as error:
        text = f"what {path} has of a comparison cannot be used: {error}; bring its files back"
        raise CliError(
            f"{text} from a copy, or compare again with another --out", CORRUPT
        ) from None
    except FileNotFoundError:
        raise CliError(
            f"{path} has no comparison that came to an end; make one: tgflow compare --out {path}",
            NO_INPUT,
        ) from None
    analysis = Analysis(outcome, int(outcome.summary["batch_size"]))
    RunFiles(path, resumed=True).write_report(comparison_page(analysis))
    Console(soft_wrap=True, highlight=False).print(f"{path / 'report.html'} is drawn", markup=False)


def _outcome(
    trainer: Comparison,
    result: RunResult,
    config: Config,
    preset: str,
    inputs: RunInputs,
) -> Outcome:
    stop = trainer.position
    scores = {each.key: _padded(each.scores.rows.numpy(), stop) for each in trainer.participants}
    stream = result.reports["stream"]
    summary = {
        **common_figures(config, trainer.graph, preset, inputs.threads, inputs.device),
        **result.metrics,
        "cut_at_steps": inputs.cut_at_steps,
        "protocol_line": result.metrics["protocol_line"]
        + (", micro-batches end with their time" if inputs.cut_at_steps else ""),
        "batch_size": config.continual.batch_size,
        "interrupted": result.stopped,
        "state_sha256": result.state_sha256,
        "num_waiting": stream.get("num_waiting", 0),
        **({"features": said} if (said := result.reports["features"]) else {}),
        "tables": result.tables,
    }
    return Outcome(event_facts(trainer.graph, 0, stop), scores, summary)


def _padded(rows: Any, size: int) -> Any:
    """Return scores of all events: those that were not scored are NaN."""
    out = np.full((size, rows.shape[1]), np.nan, dtype=rows.dtype)
    out[: len(rows)] = rows
    return out


def _summary(analysis: Analysis, result: RunResult, directory: RunDirectory) -> None:
    print_leaders(analysis, directory.path)
    for line in result.reports["features"].values():
        hint(line)
    print_stream(result.reports["stream"], directory.path / "dead-letters")
    if result.stopped:
        console = Console(soft_wrap=True, highlight=False)
        console.print(f"stopped; resume with: tgflow compare --resume --out {directory.path}")
