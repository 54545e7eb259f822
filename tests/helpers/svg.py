"""Charts as one SVG file that stands alone: for a page of text, or to be sent around."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from tgflow.report.chart import Chart, Line, round_ticks

WIDTH, HEIGHT = 620, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 172, 74, 52
LABEL_GAP = 16
"""Least distance between the names at the lines' ends."""
LIGHT = ("#ffffff", "#16181d", "#5d6470", "#e4e7ec", "#3557d6", "#0d9373", "#c2571a", "#8a3fc0",
         "#b8860b", "#d6336c", "#1c7ed6", "#495057")  # fmt: skip
DARK = ("#171a21", "#eceff4", "#98a1b0", "#2a303b", "#7d9bff", "#3fcfa6", "#f2985c", "#c58bf2",
        "#e6c04a", "#ff8fb3", "#74c0fc", "#adb5bd")  # fmt: skip
"""Page, ink, soft ink, grid, and the lines' colors."""


def _colors(palette: tuple[str, ...]) -> str:
    """Return rules without variables, which not every reader of SVG knows."""
    page, ink, soft, grid, *lines = palette
    return (
        f".page {{ fill: {page} }} text {{ fill: {soft} }} .title {{ fill: {ink} }} "
        f".grid {{ stroke: {grid} }} "
    ) + " ".join(
        f".line.c{i} {{ stroke: {color} }} .mark.c{i}, .name.c{i} {{ fill: {color} }}"
        for i, color in enumerate(lines, 1)
    )


STYLE = f"""
text {{ font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; font-size: 12px }}
.title {{ font-size: 15px; font-weight: 600 }} .end {{ text-anchor: end }}
.middle {{ text-anchor: middle }} .line {{ fill: none; stroke-width: 2.2 }}
.dashed {{ stroke-dasharray: 5 4; stroke-width: 1.6 }}
{_colors(LIGHT)}
@media (prefers-color-scheme: dark) {{ {_colors(DARK)} }}
"""


@dataclass(frozen=True, slots=True)
class _Axis:
    """Values and where they fall between `start` and `stop`."""

    ticks: Sequence[float]
    log: bool
    start: float
    stop: float

    def place(self, value: float) -> float:
        low, high = self._scaled(self.ticks[0]), self._scaled(self.ticks[-1])
        share = (self._scaled(value) - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.stop - self.start)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.log else value


def render_svg(charts: Sequence[Chart], *, log_x: bool = False) -> str:
    """Return the charts side by side as one SVG; those without a value are left out.

    Lines are named where they end. `log_x` is for all charts, their `log_y` for each.
    """
    drawn = [chart for chart in charts if any(_points(line) for line in chart.lines)]
    parts = "".join(
        f'<g transform="translate({i * WIDTH} 0)">{"".join(_chart(chart, log_x))}</g>'
        for i, chart in enumerate(drawn)
    )
    width = WIDTH * max(len(drawn), 1)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}">'
        f"<style>{STYLE}</style>"
        f'<rect class="page" width="{width}" height="{HEIGHT}"/>{parts}</svg>\n'
    )


def _points(line: Line) -> list[tuple[float, float]]:
    return [(x, y) for x, y in zip(line.x, line.y, strict=True) if y is not None]


def _chart(chart: Chart, log_x: bool) -> Iterator[str]:
    points = [point for line in chart.lines for point in _points(line)]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    across = _Axis(
        _log_ticks(min(xs), max(xs)) if log_x else round_ticks(min(xs), max(xs)),
        log_x,
        LEFT,
        WIDTH - RIGHT,
    )
    if chart.log_y:
        ticks = _log_ticks(min(ys), max(ys))
    else:
        ticks = round_ticks(min(ys) if chart.low is None else chart.low, max(ys))
    down = _Axis(ticks, chart.log_y, HEIGHT - BOTTOM, TOP)
    yield _text("title", 16, 28, chart.title)
    yield _text("", 16, 47, chart.note)
    for y in down.ticks:
        place = down.place(y)
        yield f'<path class="grid" d="M{LEFT} {place:.1f}H{WIDTH - RIGHT}"/>'
        yield _text("end", LEFT - 8, place + 4, chart.show_y(y))
    for x in across.ticks:
        yield _text("middle", across.place(x), HEIGHT - BOTTOM + 20, chart.show_x(x))
    yield _text("middle", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, chart.x_name)
    for line in chart.lines:
        yield from _line(line, across, down)
    yield from _names(chart.lines, down)


def _line(line: Line, across: _Axis, down: _Axis) -> Iterator[str]:
    places = [(across.place(x), down.place(y)) for x, y in _points(line)]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    yield f'<path class="line {line.style} c{line.color}" d="M{path}"/>' if places else ""
    for x, y in places:
        yield f'<circle class="mark c{line.color}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'


def _names(lines: Sequence[Line], down: _Axis) -> Iterator[str]:
    """Write each line's name beside its end, moved apart where two would overlap."""
    ends = [(down.place(_points(line)[-1][1]), line) for line in lines if _points(line)]
    place = -math.inf
    for y, line in sorted(ends, key=lambda end: end[0]):
        place = max(y, place + LABEL_GAP)
        yield _text(f"name c{line.color}", WIDTH - RIGHT + 10, place + 4, line.name)


def _text(css: str, x: float, y: float, text: str) -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _log_ticks(low: float, high: float) -> list[float]:
    """Return the decades that span `[low, high]`, with 2 and 5 between them where they are few."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    steps = (1, 2, 5) if last - first < 2 else (1,)
    ticks = [10.0**power * step for power in range(first, last + 1) for step in steps]
    below = [tick for tick in ticks if tick <= low * (1 + 1e-9)]
    above = [tick for tick in ticks if tick >= high * (1 - 1e-9)]
    return [tick for tick in ticks if below[-1] <= tick <= above[0]]
