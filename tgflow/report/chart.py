"""Line charts and scatter plots, as coordinates and labels for the page's template.

Sizes are percentages: plots scale to the width of the page.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

MAX_POINTS = 480
"""Most points of a line; each is the mean of its share."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart; `y` may hold None for missing values."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    color: int = 1
    style: str = "bold"
    """bold, faint or dashed; a faint line has no name in the legend."""
    fill: bool = False


class _Scale(NamedTuple):
    """Maps values of an axis to percents of its length."""

    low: float
    high: float

    def __call__(self, value: float) -> float:
        if self.high <= self.low:
            return 50.0
        return 100 * (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)


def round_ticks(low: float, high: float) -> list[float]:
    """Return 3 to 6 round numbers that span `[low, high]`."""
    if high - low < 1e-12 * max(abs(low), abs(high), 1e-6):
        low, high = low - (abs(low) or 1) * 0.05, high + (abs(high) or 1) * 0.05
    rough = (high - low) / 4
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def round_ticks_inside(low: float, high: float) -> list[float]:
    """Return the round numbers between two ends."""
    return [tick for tick in round_ticks(low, high) if low <= tick <= high]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over one x axis, with the number formats of both axes.

    The y axis of values that are all within 0 and 1 stays within.
    """

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
    ticks_x: Callable[[float, float], Sequence[float]] = round_ticks_inside
    """Marked values of the x axis between its ends."""
    why_empty: str = "Nothing was measured."

    def figure(self) -> dict[str, Any]:
        """Return the data of the template; without `y_labels` if nothing was measured."""
        lines = [_thin(line) for line in self.lines]
        xs = [x for line in lines for x, y in zip(line.x, line.y, strict=True) if y is not None]
        ys = [y for line in lines for y in line.y if y is not None]
        found: dict[str, Any] = {"title": self.title, "note": self.note, "wide": self.wide}
        if not xs:
            return found | {"why_empty": self.why_empty}
        low, high = min(ys), max(ys)
        are_shares = low >= 0 and high <= 1
        low, high = low if self.low is None else self.low, high if self.high is None else self.high
        across, ticks = _Scale(min(xs), max(xs)), round_ticks(low, high)
        if are_shares:
            ticks = [tick for tick in ticks if 0 <= tick <= 1]
        up = _Scale(ticks[0], ticks[-1])
        shown = [line for line in lines if line.style != "faint"]
        main = next((line for line in lines if line.style == "bold"), lines[0])
        beside = [line for line in shown if len(line.x) == len(main.x)]
        points = [
            [
                round(across(x) / 100, 4),
                self.show_x(x),
                *("" if (y := line.y[i]) is None else self.show_y(y) for line in beside),
            ]
            for i, x in enumerate(main.x)
        ]
        marks = self.ticks_x(*across) or [across.low]
        marks = marks if self.wide or len(marks) < 5 else marks[::2]
        return found | {
            "paths": [path for line in lines for path in _paths(line, across, up)],
            "y_labels": [(100 - up(tick), self.show_y(tick)) for tick in ticks],
            "x_labels": [(across(x), self.show_x(x)) for x in marks],
            "x_name": self.x_name,
            "legend": [(_css(line), line.name) for line in shown] if len(shown) > 1 else [],
            "data": {"lines": [[line.name, line.color] for line in beside], "points": points},
        }


@dataclass(frozen=True, slots=True)
class Scatter:
    """Named points over a logarithmic x axis, some of them joined by a line."""

    title: str
    note: str
    points: Sequence[tuple[str, float, float, int]]
    """Name, x above 0, y and color of each."""
    line: Sequence[str]
    """Names of the points that the line joins, from left to right."""
    x_name: str
    show_x: Callable[[float], str]
    show_y: Callable[[float], str]

    def figure(self) -> dict[str, Any]:
        """Return the data of the template."""
        logs = [math.log10(x) for _, x, _, _ in self.points]
        first, last = math.floor(min(logs)), math.ceil(max(logs))
        decades = range(first, max(last, first + 1) + 1)
        ys = [y for _, _, y, _ in self.points]
        ticks = round_ticks(min(ys), max(ys))
        across, up = _Scale(decades[0], decades[-1]), _Scale(ticks[0], ticks[-1])
        dots = [
            (name, color, across(log), 100 - up(y))
            for log, (name, _, y, color) in zip(logs, self.points, strict=True)
        ]
        place = {name: f"{10 * left:.1f} {3 * top:.1f}" for name, _, left, top in dots}
        joined = "M" + "L".join(place[name] for name in self.line)
        return {
            "title": self.title,
            "note": self.note,
            "wide": True,
            "dots": dots,
            "paths": [("line dashed c1", joined)] if len(self.line) > 1 else [],
            "y_labels": [(100 - up(tick), self.show_y(tick)) for tick in ticks],
            "x_labels": [(across(power), self.show_x(10.0**power)) for power in decades],
            "x_name": self.x_name,
        }


def _thin(line: Line) -> Line:
    """Return `line` with at most `MAX_POINTS` points, each the mean of an equal share."""
    size = len(line.x)
    if size <= MAX_POINTS:
        return line
    shares = list(itertools.pairwise(round(i * size / MAX_POINTS) for i in range(MAX_POINTS + 1)))
    present = [[v for v in line.y[a:b] if v is not None] for a, b in shares]
    return replace(
        line,
        x=[sum(line.x[a:b]) / (b - a) for a, b in shares],
        y=[sum(values) / len(values) if values else None for values in present],
    )


def _css(line: Line) -> str:
    return f"{line.style} c{line.color}"


def _paths(line: Line, across: _Scale, up: _Scale) -> list[tuple[str, str]]:
    """Return classes and coordinates of a line's paths, in a picture of 1000 x 300."""
    path, areas, dots = "", "", ""
    points = zip(line.x, line.y, strict=True)
    for is_there, part in itertools.groupby(points, lambda point: point[1] is not None):
        if not is_there:
            continue
        places = [f"{10 * across(x):.1f} {300 - 3 * up(y or 0.0):.1f}" for x, y in part]
        if len(places) == 1 and line.style != "faint":
            dots += f"M{places[0]}h0"
            continue
        path += "M" + "L".join(places if len(places) > 1 else places * 2)
        left, right = (place.split()[0] for place in (places[0], places[-1]))
        areas += f"M{left} 300L{'L'.join(places)}L{right} 300Z"
    area = [(f"area c{line.color}", areas)] if line.fill else []
    dot = [(f"line dot {_css(line)}", dots)] if dots else []
    return [*area, (f"line {_css(line)}", path), *dot]


def calibration_chart(
    shares: Mapping[str, Mapping[int, float]], colors: Sequence[int], of: str
) -> Chart:
    """Return the chart of the share of a label by tenth of predicted probability, by name."""
    lines = [
        Line(name, [tenth / 10 + 0.05 for tenth in found], [*found.values()], color)
        for (name, found), color in zip(shares.items(), colors, strict=True)
    ]
    lines.append(Line("ideal", [0.05, 0.95], [0.05, 0.95], 1, "dashed"))
    percent = "{:.0%}".format
    note = f"share of {of} by predicted probability"
    return Chart(f"Calibration of {of}", note, lines, percent, percent, "predicted", 0.0, 1.0)
