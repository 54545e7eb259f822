"""Pictures of a run for the README: its display half-way, and plots as its report has them.

Run as `python tests/helpers/run_picture.py RUN DISPLAY.svg REPORT.svg`; RUN is a directory that
`tgflow run` has left.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from helpers.svg import render_svg
from tgflow.report.chart import Chart, Line
from tgflow.report.display import Display
from tgflow.report.formatting import compact
from tgflow.report.page import rolling_mean
from tgflow.runtime.files import read_figures, read_records

WIDTH = 96
"""Columns of the terminal."""
POINTS = 30
"""Of a line."""
FRAME = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<style>.{unique_id}-matrix text {{ font: {char_height}px monospace }}
.{unique_id}-title {{ font: bold 18px sans-serif }}
{styles}</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x} {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g></svg>
"""
"""As rich's own, without fonts from elsewhere."""


def draw_display(records: Sequence[Mapping[str, Any]], title: str, total: int) -> str:
    """Return what a terminal shows once it has heard of some records."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), color_system="truecolor")
    display = Display(console, title, total)
    display._start -= records[-1]["elapsed"]
    for record in records:
        display.update(record)
    console.print(display._panel())
    return console.export_svg(title="tgflow run", code_format=FRAME, unique_id="display")


def draw_plots(records: Sequence[Mapping[str, Any]]) -> str:
    """Return AP and MRR of the latest events, and since the start."""
    window = max(5, len(records) // 25)
    every = slice(window - 1, None, max(1, len(records) // POINTS))
    count = [float(record["stop"]) for record in records][every]
    charts = []
    for name, key, color in (("Average precision", "ap", 1), ("Mean reciprocal rank", "mrr", 2)):
        latest = rolling_mean(records, f"metrics.{key}", window)[every]
        since = [record[f"prequential.{key}"] for record in records][every]
        lines = [
            Line("latest events", count, latest, color),
            Line("since the start", count, since, color, "dashed"),
        ]
        note = "each event is predicted before it is learned"
        charts.append(Chart(name, note, lines, compact, lambda y: f"{y:.2f}", "events"))
    return render_svg(charts)


if __name__ == "__main__":
    run, *targets = map(Path, sys.argv[1:])
    found, figures = read_records(run / "metrics.jsonl").kept, read_figures(run / "metrics.json")
    assert figures is not None
    stream = Path(figures["stream"]).name.partition(".")[0]
    title = f"{figures['model'].upper()} learning from {stream}"
    half = draw_display(found[: len(found) // 2], title, figures["num_events"])
    for path, picture in zip(targets, (half, draw_plots(found)), strict=True):
        path.write_text(picture, encoding="utf-8")
