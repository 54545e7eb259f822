"""Learning curves of trainers: tables, and pictures in notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from tgflow.report.chart import Chart, Line
from tgflow.report.formatting import compact, score
from tgflow.train.continual import ContinualTrainer

if TYPE_CHECKING:
    import pyarrow as pa

_COLORS = ("#2f6fde", "#1a9c6c", "#c8641c", "#8a4fc7")
_POINTS = 100


@dataclass(frozen=True, slots=True, repr=False)
class LearningCurve:
    """Metrics along a stream, each predicted before it was learned. A notebook shows a picture."""

    event: Sequence[int]
    """Number of events up to the end of each part of the stream."""
    metrics: dict[str, list[float | None]]
    """Mean of each metric over each part; None where it was not measured."""
    shown: Sequence[str] = ("ap", "mrr")
    """Metrics in the picture."""

    def to_arrow(self) -> pa.Table:
        """Return a row for each part: `event`, and the metrics."""
        import pyarrow as pa

        return pa.table({"event": list(self.event), **self.metrics})

    def to_pandas(self) -> Any:
        """Return `to_arrow()` as a pandas frame; needs pandas."""
        return self.to_arrow().to_pandas()

    def svg(self) -> str:
        """Return the picture as the text of an SVG file."""
        lines = [
            Line(name.upper(), self.event, self.metrics[name], color)
            for color, name in enumerate(self.shown)
        ]
        chart = Chart("", "", lines, compact, "{:.2f}".format, "events").figure()
        parts = [
            f'<path d="M0 {3 * top:.1f}H1000" stroke="currentColor" opacity=".15"/>'
            f'<text x="-10" y="{3 * top + 5:.1f}" text-anchor="end">{text}</text>'
            for top, text in chart.get("y_labels", ())
        ]
        parts += [
            f'<text x="{10 * left:.1f}" y="325" text-anchor="middle">{text}</text>'
            for left, text in chart.get("x_labels", ())
        ]
        for at, (line, (_, path)) in enumerate(zip(lines, chart.get("paths", ()), strict=False)):
            color = _COLORS[line.color % len(_COLORS)]
            parts.append(f'<path d="{path}" fill="none" stroke="{color}" stroke-width="2.5"/>')
            name = escape(line.name)
            parts.append(f'<text x="{90 * at}" y="-15" fill="{color}">{name}</text>')
        return (
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="-60 -40 1100 390" width="720" '
            'style="max-width:100%" font-family="sans-serif" font-size="17" fill="currentColor">'
            + "".join(parts)
            + '<text x="1000" y="-15" text-anchor="end">by number of events</text></svg>'
        )

    def __repr__(self) -> str:
        last = [(name, self.metrics[name][-1]) for name in self.shown]
        text = ", ".join(f"{name} {score(value)}" for name, value in last if value is not None)
        stop = self.event[-1] if self.event else 0
        return f"LearningCurve({len(self.event)} parts up to event {stop:,}; in the last: {text})"

    def _repr_html_(self) -> str:
        return self.svg()


def learning_curve(
    trainer: ContinualTrainer, shown: Sequence[str] = ("ap", "mrr")
) -> LearningCurve:
    """Return a trainer's metrics along its stream, in at most 100 parts of about equal length.

    Args:
        trainer: The trainer; not modified.
        shown: Metrics in the picture; the table has all.

    Example:
        >>> trainer = tg.ContinualTrainer(tg.EdgeBank(), tg.TemporalGraph())
        >>> _ = trainer.run([many])
        >>> tg.learning_curve(trainer).to_arrow().column_names[:2]
        ['event', 'ap']
    """
    parts = trainer.progress.timeline.parts(_POINTS)
    names = dict.fromkeys(name for _, means in parts for name in means)
    metrics = {name: [means.get(name) for _, means in parts] for name in names}
    return LearningCurve([stop for stop, _ in parts], metrics, [n for n in shown if n in metrics])
