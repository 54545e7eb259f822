"""Progress of a run: a live panel on a terminal, else a line from time to time."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from rich.align import Align
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tgflow.base.units import duration
from tgflow.report.formatting import compact, num_bytes, score

Record = Mapping[str, Any]
SECONDS_PER_LINE = 5.0
SHOWN = ("running.ap", "running.mrr", "events_per_second")
LOSS = "running.loss"
SPARK = "▁▂▃▄▅▆▇█"


class Display:
    """Progress of a run, fed one record a micro-batch; `metrics` names further figures by key.

    A model that learns has a loss.
    """

    def __init__(
        self,
        console: Console,
        title: str,
        total: int | None,
        metrics: Mapping[str, str] | None = None,
        note: Callable[[], str] = str,
        *,
        learns: bool = True,
    ) -> None:
        self._metrics, self._note, self._learns = metrics or {}, note, learns
        self._console, self._title, self._total = console, title, total
        shown = (*SHOWN, LOSS) if learns else SHOWN
        self._history: dict[str, list[float]] = {key: [] for key in shown}
        self._last: Record = {}
        self._start = self._said = time.monotonic()
        self._live = (
            Live(get_renderable=self._panel, console=console, refresh_per_second=8)
            if console.is_terminal
            else None
        )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        else:
            self._console.print(self._title)
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()
        elif self._last:
            self._say()

    def update(self, record: Record) -> None:
        """Show the figures of one more micro-batch."""
        self._last = record
        for key, history in self._history.items():
            if key in record:
                history.append(record[key])
        now = time.monotonic()
        if self._live is None and now - self._said >= SECONDS_PER_LINE:
            self._said = now
            self._say()

    def _say(self) -> None:
        self._console.print(self._line(), soft_wrap=True, highlight=False)

    @property
    def _done(self) -> float:
        """Share of the stream that is done; 0 if unknown."""
        if self._total:
            return min(float(self._last.get("stop", 0)) / self._total, 1.0)
        return float(self._last.get("progress", 0.0))

    def _events(self) -> str:
        events = f"{self._last.get('stop', 0):,}"
        return f"{events} of {self._total:,} events" if self._total else f"{events} events"

    def _value(self, key: str) -> float:
        value = self._last.get(key)
        return math.nan if value is None else float(value)

    @property
    def _has_share(self) -> bool:
        return self._total is not None or "progress" in self._last

    def _lag(self) -> str:
        if self._has_share or "lag_events" not in self._last:
            return f"lag {duration(self._value('freshness_seconds'))}"
        behind = f", {duration(self._last['lag_seconds'])}" if "lag_seconds" in self._last else ""
        return f"lag {self._last['lag_events']:,} events{behind}"

    def _line(self) -> str:
        return (
            (f"{self._done:4.0%}  " if self._has_share else "")
            + self._events()
            + f"  {compact(self._value('events_per_second'))} events/s  {self._lag()}"
            + "  recent:"
            + "".join(
                f"  {title} {score(self._value(f'running.{name}'))}"
                for name, title in self._metrics.items()
                if f"running.{name}" in self._last
            )
            + (f"  loss {score(self._value(LOSS))}" if self._learns else "")
            + f"  AP {score(self._value('running.ap'))}  MRR {score(self._value('running.mrr'))}"
            f"  {self._note()}".rstrip()
        )

    def _panel(self) -> Panel:
        elapsed = time.monotonic() - self._start
        bar = Table.grid(expand=True, padding=(0, 1))
        bar.add_column(ratio=1)
        bar.add_column(justify="right", no_wrap=True)
        left = elapsed * (1 - self._done) / self._done if self._done > 0.005 else math.nan
        clock = f"{self._done:.0%} · {duration(left)} left"
        known = self._has_share
        bar.add_row(
            Align(ProgressBar(total=1.0, completed=self._done, pulse=not known), vertical="middle"),
            Text(f"{self._events()} · {clock if known else duration(elapsed)}", style="dim"),
        )
        own = (
            f"{title} {score(self._value(f'running.{name}'))}, "
            f"{score(self._value(f'prequential.{name}'))} since start"
            for name, title in self._metrics.items()
            if f"running.{name}" in self._last
        )
        return Panel(
            Group(bar, Text(self._note(), style="yellow"), *map(Text, own), self._figures()),
            title=f"[bold]{self._title}[/bold]",
            title_align="left",
            border_style="dim",
            padding=(1, 2),
        )

    def _figures(self) -> Table:
        ap, mrr = (score(self._value(f"prequential.{name}")) for name in ("ap", "mrr"))
        error = self._value("prequential.mrr_error")  # if it is of a sample of the events
        mrr += "" if math.isnan(error) else f" ± {error:.4f}"
        lag = f"{self._lag()} · {num_bytes(self._last.get('rss_bytes', 0))}"
        speed = f"{compact(self._value('events_per_second'))} events/s"
        cells = {
            "running.ap": ("AP", "cyan", None, f"{ap} since start"),
            "running.mrr": ("MRR", "green", None, f"{mrr} since start"),
            LOSS: ("Loss", "yellow", None, "of the newest"),
            "events_per_second": ("Speed", "magenta", speed, lag),
        }
        grid = Table.grid(expand=True, padding=(0, 2))
        width = max(8, min(24, self._console.width // 6))
        columns = []
        for key, (name, color, text, below) in cells.items():
            if key in self._history:
                grid.add_column(ratio=4 if key == "events_per_second" else 3, no_wrap=True)
                columns.append(
                    (
                        Text(name, style="dim"),
                        Text(text or score(self._value(key)), style=f"bold {color}"),
                        Text(sparkline(self._history[key], width), style=color),
                        Text(below, style="dim"),
                    )
                )
        for row in zip(*columns, strict=True):
            grid.add_row(*row)
        return grid


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw `values` with `width` block characters, each the mean of its share; '' for none."""
    if not values:
        return ""
    width = min(width, len(values))
    cuts = [i * len(values) // width for i in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(cuts)]
    low, high = min(means), max(means)
    scale = (len(SPARK) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARK[round((mean - low) * scale)] for mean in means)
