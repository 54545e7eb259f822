"""Line charts and scatter plots, as coordinates and labels for the page's template.

Sizes are percents: plots scale to the width of the page.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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

    @property
    def css(self) -> str:
        """Classes of its style and color."""
        return f"{self.style} c{self.color}"


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

    def figure(self) -> dict[str, Any]:
        """Return what the template draws; without `y_labels` if nothing was measured."""
        lines = [_thin(line) for line in self.lines]
        xs = [x for line in lines for x, y in zip(line.x, line.y, strict=True) if y is not None]
        ys = [y for line in lines for y in line.y if y is not None]
        found: dict[str, Any] = {"title": self.title, "note": self.note, "wide": self.wide}
        if not xs:
            return found
        x0, x1 = min(xs), max(xs)
        low, high = self.low, self.high
        ticks = round_ticks(min(ys) if low is None else low, max(ys) if high is None else high)

        def across(x: float) -> float:
            return 100 * (x - x0) / (x1 - x0) if x1 > x0 else 50.0

        def down(y: float) -> float:
            return 100 * (
                1 - (min(max(y, ticks[0]), ticks[-1]) - ticks[0]) / (ticks[-1] - ticks[0])
            )

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
        places = [0] if x1 <= x0 else [0, 25, 50, 75, 100]
        return found | {
            "paths": [path for line in lines for path in _paths(line, across, down)],
            "y_labels": [(down(tick), self.show_y(tick)) for tick in ticks],
            "x_labels": [(at, self.show_x(x0 + at / 100 * (x1 - x0))) for at in places],
            "x_name": self.x_name,
            "legend": [(line.css, line.name) for line in shown] if len(shown) > 1 else [],
            "data": {"lines": [[line.name, line.color] for line in beside], "points": points},
        }


@dataclass(frozen=True, slots=True)
class Scatter:
    """Named points, some of which a line joins, over a logarithmic x axis."""

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
        """Return what the template draws; without `y_labels` if there are no points."""
        found: dict[str, Any] = {"title": self.title, "note": self.note, "wide": True}
        if not self.points:
            return found
        logs, ys = [math.log10(x) for _, x, _, _ in self.points], [y for _, _, y, _ in self.points]
        first, last = math.floor(min(logs)), max(math.ceil(max(logs)), math.floor(min(logs)) + 1)
        ticks = round_ticks(min(ys), max(ys))

        def across(x: float) -> float:
            return 100 * (math.log10(x) - first) / (last - first)

        def down(y: float) -> float:
            return 100 * (1 - (y - ticks[0]) / (ticks[-1] - ticks[0]))

        dots = [(name, color, across(x), down(y)) for name, x, y, color in self.points]
        place = {name: f"{10 * left:.1f} {3 * top:.1f}" for name, _, left, top in dots}
        joined = "M" + "L".join(place[name] for name in self.line)
        decades = [10.0**power for power in range(first, last + 1)]
        return found | {
            "dots": dots,
            "paths": [("line dashed c1", joined)] if len(self.line) > 1 else [],
            "y_labels": [(down(tick), self.show_y(tick)) for tick in ticks],
            "x_labels": [(across(tick), self.show_x(tick)) for tick in decades],
            "x_name": self.x_name,
        }


def _thin(line: Line) -> Line:
    """Return `line` with at most `MAX_POINTS` points, each the mean of an equal share."""
    size = len(line.x)
    if size <= MAX_POINTS:
        return line
    cuts = [round(i * size / MAX_POINTS) for i in range(MAX_POINTS + 1)]
    shares = list(itertools.pairwise(cuts))
    x = [sum(line.x[a:b]) / (b - a) for a, b in shares]
    present = [[v for v in line.y[a:b] if v is not None] for a, b in shares]
    y = [sum(values) / len(values) if values else None for values in present]
    return Line(line.name, x, y, line.color, line.style, line.fill)


def round_ticks(low: float, high: float) -> list[float]:
    """Return 3 to 6 round numbers that span `[low, high]`."""
    if high - low < 1e-12 * max(abs(low), abs(high), 1e-6):
        low, high = low - (abs(low) or 1) * 0.05, high + (abs(high) or 1) * 0.05
    rough = (high - low) / 4
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def _paths(
    line: Line, across: Callable[[float], float], down: Callable[[float], float]
) -> list[tuple[str, str]]:
    """Return classes and coordinates of a line's paths, in a picture of 1000 x 300."""
    parts: list[list[str]] = [[]]
    for x, y in zip(line.x, line.y, strict=True):
        if y is None:
            parts.append([])
        else:
            parts[-1].append(f"{10 * across(x):.1f} {3 * down(y):.1f}")
    parts = [part for part in parts if part]
    path = "".join("M" + "L".join(part if len(part) > 1 else part * 2) for part in parts)
    drawn = [(f"line {line.css}", path)]
    if line.fill:
        areas = "".join(
            f"M{part[0].split()[0]} 300L{'L'.join(part)}L{part[-1].split()[0]} 300Z"
            for part in parts
        )
        drawn.insert(0, (f"area c{line.color}", areas))
    return drawn
