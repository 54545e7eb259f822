"""Renders the README picture of a run's display.

Run as `PYTHONPATH=tests python tests/helpers/run_picture.py RUN DISPLAY.svg`; RUN is a directory
that `tgflow run` has left.
"""

import io
import sys
from pathlib import Path

from rich.console import Console

from tgflow.report.display import Display
from tgflow.run.records import read_figures, read_records

WIDTH = 96
"""Columns of the terminal."""
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
"""SVG template of rich, without external fonts."""

if __name__ == "__main__":
    run, target = map(Path, sys.argv[1:])
    records, figures = read_records(run / "metrics.jsonl").kept, read_figures(run / "metrics.json")
    assert figures is not None
    records = records[: len(records) // 2]
    stream = Path(figures["stream"]).name.partition(".")[0]
    title = f"{figures['model'].upper()} learning from {stream}"
    console = Console(record=True, width=WIDTH, file=io.StringIO(), color_system="truecolor")
    display = Display(console, title, figures["num_events"])
    display._start -= records[-1]["elapsed"]
    for record in records:
        display.update(record)
    console.print(display._panel())
    picture = console.export_svg(title="tgflow run", code_format=FRAME, unique_id="display")
    target.write_text(picture, encoding="utf-8")
