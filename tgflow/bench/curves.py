"""The pictures beside the tables: how costs change as a graph grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tgflow.bench.grown import POWER_LAW
from tgflow.bench.row import Params, Row
from tgflow.report.chart import Chart, Line
from tgflow.report.formatting import compact
from tgflow.report.svg import render_svg


@dataclass(frozen=True, slots=True)
class Curve:
    """A line through rows of one name, by their `entries`."""

    label: str
    row: str
    color: int
    having: Params = field(default_factory=dict)
    """Rows with these params only."""
    baseline: bool = False
    """Draw what the rows are compared with, dashed."""
    show: Callable[[float], float] = lambda value: value
    """The row's figure as the picture has it."""

    def line(self, rows: Sequence[Row], device: str) -> Line:
        """Return the line of the rows of a device; one without points where no row fits."""
        points = []
        for row in rows:
            value = row.baseline if self.baseline else row.value
            of = {"stream": POWER_LAW, "device": device, **self.having}
            fits = row.name == self.row and of.items() <= row.params.items()
            if fits and value:
                points.append((float(row.params["entries"]), self.show(value)))
        points.sort()
        style = "dashed" if self.baseline else "bold"
        return Line(self.label, [x for x, _ in points], [y for _, y in points], self.color, style)


@dataclass(frozen=True, slots=True)
class Picture:
    """Curves over one axis."""

    title: str
    note: str
    curves: Sequence[Curve]
    log_y: bool = False

    def chart(self, rows: Sequence[Row], device: str) -> Chart:
        """Return the chart of the picture's curves on a device."""
        return Chart(
            title=self.title,
            note=self.note if device == "cpu" else f"{self.note}; the graph on {device}",
            lines=[line for curve in self.curves if (line := curve.line(rows, device)).x],
            show_x=compact,
            show_y=compact,
            x_name="entries in the graph",
            low=0.0,
            log_y=self.log_y,
        )


def draw(pictures: Sequence[Picture], rows: Sequence[Row]) -> str:
    """Return the pictures side by side as SVG, the CPU's and then another device's."""
    devices = dict.fromkeys(str(row.params.get("device", "cpu")) for row in rows)
    charts = [picture.chart(rows, device) for device in devices for picture in pictures]
    return render_svg(charts, log_x=True)


def ns_each(per_second: float) -> float:
    """Return a rate as nanoseconds apiece."""
    return 1e9 / per_second
