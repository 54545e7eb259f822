"""Line charts as HTML that scales to its width: SVG for the lines, text in HTML.

The page's style sheet (`report.css`) colors them; `report.js` adds a cursor, and nothing is lost
without it.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

MAX_POINTS = 480
"""Points that a line is thinned to, each the mean of its share."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart; `y` may hold None where nothing was measured."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    color: int = 1
    style: str = "bold"
    """bold, faint or dashed; a faint line has no name in the legend."""
    fill: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over one x axis, and how to write the numbers of both axes."""

    title: str
    note: str
    lines: Sequence[Line]
    show_x: Callable[[float], str]
    show_y: Callable[[float], str]
    x_name: str
    low: float | None = None
    """Lower end of the y axis; None: the lowest value."""
    high: float | None = None
    wide: bool = False
    log_y: bool = False
    """In decades; of SVG files."""


def render_chart(chart: Chart) -> str:
    """Return `chart` as an HTML figure; a chart without a single value says so."""
    lines = [_thin(line) for line in chart.lines]
    xs = [x for line in lines for x, y in zip(line.x, line.y, strict=True) if y is not None]
    ys = [y for line in lines for y in line.y if y is not None]
    head = f"<figcaption><b>{escape(chart.title)}</b><span>{escape(chart.note)}</span></figcaption>"
    kind = "chart wide" if chart.wide else "chart"
    if not xs:
        return f'<figure class="{kind}">{head}<p class="empty">Nothing was measured.</p></figure>'
    ticks_y = round_ticks(
        min(ys) if chart.low is None else chart.low, max(ys) if chart.high is None else chart.high
    )
    box = _Box(min(xs), max(xs), ticks_y[0], ticks_y[-1])
    shapes = "".join(_shape(line, box) for line in lines)
    return (
        f'<figure class="{kind}">{head}{_legend(lines)}<div class="plot">'
        f"{_labels_y(ticks_y, box, chart)}"
        f'<svg viewBox="0 0 1000 300" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(chart.title)}">{_grid(ticks_y, box)}{shapes}</svg>'
        f'<i class="cursor"></i><output></output></div>{_labels_x(box, chart)}'
        f"{_hover_data(lines, box, chart)}</figure>"
    )


@dataclass(frozen=True, slots=True)
class _Box:
    """What the plot shows, in data units, and where it falls in the picture."""

    x0: float
    x1: float
    y0: float
    y1: float

    def across(self, x: float) -> float:
        return (x - self.x0) / (self.x1 - self.x0) if self.x1 > self.x0 else 0.5

    def down(self, y: float) -> float:
        return 1 - (min(max(y, self.y0), self.y1) - self.y0) / (self.y1 - self.y0)


def _thin(line: Line) -> Line:
    """Return `line` with at most `MAX_POINTS` points, each the mean of an equal share."""
    size = len(line.x)
    if size <= MAX_POINTS:
        return line
    cuts = [round(i * size / MAX_POINTS) for i in range(MAX_POINTS + 1)]
    shares = list(itertools.pairwise(cuts))
    x = [sum(line.x[a:b]) / (b - a) for a, b in shares]
    y = [_mean([v for v in line.y[a:b] if v is not None]) for a, b in shares]
    return Line(line.name, x, y, line.color, line.style, line.fill)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def round_ticks(low: float, high: float) -> list[float]:
    """Return 3 to 6 round numbers that span `[low, high]`."""
    if high - low < 1e-12 * max(abs(low), abs(high), 1e-6):
        low, high = low - (abs(low) or 1) * 0.05, high + (abs(high) or 1) * 0.05
    rough = (high - low) / 4
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def _shape(line: Line, box: _Box) -> str:
    parts: list[list[str]] = [[]]
    for x, y in zip(line.x, line.y, strict=True):
        if y is None:
            parts.append([])
        else:
            parts[-1].append(f"{box.across(x) * 1000:.1f} {box.down(y) * 300:.1f}")
    parts = [part for part in parts if part]
    path = "".join("M" + "L".join(part if len(part) > 1 else part * 2) for part in parts)
    css = f"line {line.style} c{line.color}"
    drawn = f'<path class="{css}" d="{path}" vector-effect="non-scaling-stroke"/>'
    if not line.fill:
        return drawn
    areas = "".join(
        f"M{part[0].split()[0]} 300L{'L'.join(part)}L{part[-1].split()[0]} 300Z" for part in parts
    )
    return f'<path class="area c{line.color}" d="{areas}"/>{drawn}'


def _legend(lines: Sequence[Line]) -> str:
    shown = [line for line in lines if line.style != "faint"]
    if len(shown) < 2:
        return ""
    keys = "".join(
        f'<li class="{line.style} c{line.color}">{escape(line.name)}</li>' for line in shown
    )
    return f'<ul class="legend">{keys}</ul>'


def _grid(ticks: Sequence[float], box: _Box) -> str:
    rows = (box.down(tick) * 300 for tick in ticks)
    return "".join(
        f'<path class="grid" d="M0 {y:.1f}H1000" vector-effect="non-scaling-stroke"/>' for y in rows
    )


def _labels_y(ticks: Sequence[float], box: _Box, chart: Chart) -> str:
    spans = "".join(
        f'<span style="top:{box.down(tick) * 100:.2f}%">{escape(chart.show_y(tick))}</span>'
        for tick in ticks
    )
    return f'<div class="y">{spans}</div>'


def _labels_x(box: _Box, chart: Chart) -> str:
    places = [0.0] if box.x1 <= box.x0 else [0.0, 0.25, 0.5, 0.75, 1.0]
    spans = "".join(
        f"<span>{escape(chart.show_x(box.x0 + at * (box.x1 - box.x0)))}</span>" for at in places
    )
    return f'<div class="x">{spans}</div><div class="x-name">{escape(chart.x_name)}</div>'


def _hover_data(lines: Sequence[Line], box: _Box, chart: Chart) -> str:
    """Return what the cursor shows at each point of the first bold line."""
    main = next((line for line in lines if line.style == "bold"), lines[0])
    shown = [line for line in lines if line.style != "faint" and len(line.x) == len(main.x)]
    points = [
        [
            round(box.across(x), 4),
            chart.show_x(x),
            *("" if line.y[i] is None else chart.show_y(line.y[i] or 0.0) for line in shown),
        ]
        for i, x in enumerate(main.x)
    ]
    names = [[line.name, line.color] for line in shown]
    data = json.dumps({"lines": names, "points": points}, ensure_ascii=False)
    return f'<script type="application/json">{data.replace("<", chr(92) + "u003c")}</script>'
