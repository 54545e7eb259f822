"""Points with names over a logarithmic x axis, as HTML that scales to its width."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from tgflow.report.chart import round_ticks


@dataclass(frozen=True, slots=True)
class Point:
    """A named point; `x` is above 0."""

    name: str
    x: float
    y: float
    color: int = 1


@dataclass(frozen=True, slots=True)
class Scatter:
    """Points, some of which a line joins, and how to write the numbers of both axes."""

    title: str
    note: str
    points: Sequence[Point]
    line: Sequence[str]
    """Names of the points that the line joins, from left to right."""
    x_name: str
    show_x: Callable[[float], str]
    show_y: Callable[[float], str]


def render_scatter(chart: Scatter) -> str:
    """Return `chart` as an HTML figure; one without points says so."""
    head = f"<figcaption><b>{escape(chart.title)}</b><span>{escape(chart.note)}</span></figcaption>"
    if not chart.points:
        return (
            f'<figure class="chart wide">{head}<p class="empty">Nothing was measured.</p></figure>'
        )
    ticks_x = _decades([point.x for point in chart.points])
    ticks_y = round_ticks(min(p.y for p in chart.points), max(p.y for p in chart.points))
    place = {p.name: (_across(p.x, ticks_x), _down(p.y, ticks_y)) for p in chart.points}
    grid = "".join(
        f'<path class="grid" d="M0 {3 * _down(tick, ticks_y):.1f}H1000" '
        'vector-effect="non-scaling-stroke"/>'
        for tick in ticks_y
    )
    joined = "L".join(f"{10 * x:.1f} {3 * y:.1f}" for x, y in (place[name] for name in chart.line))
    front = (
        f'<path class="line dashed c1" d="M{joined}" vector-effect="non-scaling-stroke"/>'
        if len(chart.line) > 1
        else ""
    )
    labels = "".join(
        f'<span style="top:{_down(tick, ticks_y):.2f}%">{escape(chart.show_y(tick))}</span>'
        for tick in ticks_y
    )
    below = "".join(
        f'<span style="left:{_across(tick, ticks_x):.2f}%">{escape(chart.show_x(tick))}</span>'
        for tick in ticks_x
    )
    return (
        f'<figure class="chart wide points">{head}<div class="plot"><div class="y">{labels}</div>'
        f'<svg viewBox="0 0 1000 300" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(chart.title)}">{grid}{front}</svg>'
        f"{''.join(_mark(point, *place[point.name]) for point in chart.points)}</div>"
        f'<div class="x ticks">{below}</div>'
        f'<div class="x-name">{escape(chart.x_name)}</div></figure>'
    )


def _mark(point: Point, x: float, y: float) -> str:
    at = f"left:{x:.2f}%;top:{y:.2f}%"
    return (
        f'<i class="dot c{point.color}" style="{at}"></i>'
        f'<span class="dot-name" style="{at}">{escape(point.name)}</span>'
    )


def _decades(values: Sequence[float]) -> list[float]:
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def _across(x: float, ticks: Sequence[float]) -> float:
    low, high = math.log10(ticks[0]), math.log10(ticks[-1])
    return 100 * (math.log10(x) - low) / (high - low)


def _down(y: float, ticks: Sequence[float]) -> float:
    return 100 * (1 - (y - ticks[0]) / (ticks[-1] - ticks[0]))
