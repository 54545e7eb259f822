"""What every comparison leaves, and what it prints: over a stream as well as offline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from tgflow.cli.chosen_preset import cuts_at_steps, family_of
from tgflow.cli.lineup import ModelChoice, left_out
from tgflow.compare.analysis import Analysis
from tgflow.compare.outcome import SUMMARY, Outcome
from tgflow.compare.page import comparison_page
from tgflow.config import Config
from tgflow.graph import TemporalGraph
from tgflow.presets import StreamFacts
from tgflow.report.formatting import compact, score
from tgflow.report.table_text import print_summary
from tgflow.runtime.files import RunFiles
from tgflow.runtime.gpu import describe_device, device_figures
from tgflow.runtime.machine import describe, peak_rss_bytes
from tgflow.units import seconds_per_tick

FILES = {
    "report.html": "who is ahead, and is it chance; open it in a browser",
    "metrics.json": "all figures",
    "scores.arrow": "every event by every model",
    "config.toml": "these settings, for --config",
}


def preset_line(config: Config, facts: StreamFacts | None, choices: list[ModelChoice]) -> str:
    """Return the line that says what a preset has set, and by which facts of the stream."""
    wanted, family = config.compare.preset, family_of(config, facts)
    if family is None and wanted == "none":
        return "no preset"
    sets = [
        f"{choice.label}.{key}={float(f'{value:.4g}') if isinstance(value, float) else value}"
        for choice in choices
        for key, value in choice.preset.items()
    ]
    if config.compare.cut_at_steps is None and cuts_at_steps(config, facts):
        sets.append("cut_at_steps=True")
    measured = "" if facts is None else f" (stream measured: {facts.line()})"
    without = "".join(f"; leaves out {name}" for name in left_out(config, facts))
    return f"preset {family or wanted}{measured} sets {', '.join(sets) or 'nothing'}{without}"


def common_figures(
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


def write_outcome(files: RunFiles, outcome: Outcome, batch_size: int) -> Analysis:
    """Write what a comparison leaves; return what is made of it.

    Raises:
        OSError: If it cannot be written.
    """
    files.write_json(SUMMARY, outcome.summary)
    outcome.write(files.path)
    analysis = Analysis(outcome, batch_size)
    if analysis.num_events:
        files.write_report(comparison_page(analysis))
    return analysis


def print_leaders(analysis: Analysis, path: Path) -> None:
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
