"""Formatting of numbers, times of streams and sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

from tgflow.base.iso_time import FIRST_DATE, LAST_DATE
from tgflow.base.units import duration, seconds_per_tick
from tgflow.report.chart import round_ticks_inside


def compact(value: float) -> str:
    """Write `value` with three digits and a suffix, such as 59.8k; NaN as a dash."""
    if not math.isfinite(value):
        return "–"
    for limit, divisor, suffix in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= limit:
            return f"{value / divisor:.3g}{suffix}"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def score(value: float) -> str:
    """Write a metric in `[0, 1]` with four decimals; NaN as a dash."""
    return f"{value:.4f}" if math.isfinite(value) else "–"


def num_bytes(size: float) -> str:
    """Write a size in bytes, such as 512 MB."""
    for limit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= limit:
            return f"{size / limit:.3g} {name}"
    return f"{size:.0f} B"


def rank_line(figures: Mapping[str, Any]) -> str:
    """Describe a rank in one line, by its figures in metrics.json."""
    sent = ", ".join(f"{kind} {num_bytes(size)}" for kind, size in figures["sent_bytes"].items())
    return (
        f"computes {figures['compute_seconds']:.1f} s, waits {figures['wait_seconds']:.1f} s, "
        f"holds {num_bytes(figures['memory_bytes'])}; sent: {sent}"
    )


def reuse_line(figures: Mapping[str, Any]) -> str:
    """Describe the rows reused in training in one line, by a run's result."""
    reused, refreshed = figures["reuse.reused"], figures["reuse.refreshed"]
    share = reused / max(figures["reuse.asked"], 1)
    line = (
        f"{share:.0%} of {compact(figures['reuse.asked'])} rows reused, at most "
        f"{figures['reuse.largest_lag']} batches old; {compact(refreshed)} computed again, "
        f"{compact(figures['reuse.saved'])} neighbors not read"
    )
    return line + ("; off, as too few are reused" if figures["reuse.is_off"] else "")


DAY, MONDAY = 86_400, 345_600
"""Seconds of a day, and Unix seconds of the first Monday."""
STEPS = (
    *(step * unit for unit in (1, 60) for step in (1, 2, 5, 10, 15, 30)),
    *(hours * 3600 for hours in (1, 2, 3, 6, 12, 24, 48, 168)),
)
"""Round numbers of seconds, up to a week."""
YEARS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
Ticks: TypeAlias = Callable[[float, float], Sequence[float]]
"""Returns marked values of an axis between its ends."""


def stream_time(
    first: int, last: int, unit: str, *, dated: bool = False
) -> tuple[Callable[[float], str], str, Ticks]:
    """Return the format of times from `first` to `last`, and title and marks of their axis.

    Times of 1990 to 8999 as Unix time are written in UTC, with the parts that differ, or `dated`:
    with year and day; other ones as the time since `first`.
    """
    if unit == "tick":
        return compact, "stream time (ticks)", round_ticks_inside
    seconds = seconds_per_tick(unit)
    if first * seconds < FIRST_DATE or last * seconds > LAST_DATE:

        def since(low: float, high: float) -> list[float]:
            found = _round_spans((low - first) * seconds, (high - first) * seconds)
            return [first + x / seconds for x in found]

        name = "time since the stream's first event"
        return lambda t: duration((t - first) * seconds), name, since
    span = (last - first) * seconds
    clock = "" if span > 3 * 86400 else "%H:%M" if span > 3600 else "%H:%M:%S"
    day = "%Y-%m-%d" if dated or not clock else "%m-%d" if span > 3600 else ""
    form = f"{day} {clock}".strip()
    return (
        lambda t: datetime.fromtimestamp(t * seconds, UTC).strftime(form),
        "stream time (UTC)",
        lambda low, high: [x / seconds for x in _round_dates(low * seconds, high * seconds)],
    )


def _round_spans(low: float, high: float) -> list[float]:
    """Return at most 7 round numbers of seconds between two, such as whole hours."""
    if (step := next((x for x in STEPS if 6 * x >= high - low), None)) is None:
        return [DAY * x for x in round_ticks_inside(low / DAY, high / DAY)]
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _round_dates(low: float, high: float) -> list[float]:
    """Return at most 7 Unix times between two: of hours, days, Mondays or firsts of months."""
    if high - low <= 6 * STEPS[-1]:
        return [x + MONDAY for x in _round_spans(low - MONDAY, high - MONDAY)]
    begin, end = (datetime.fromtimestamp(x, UTC) for x in (low, high))
    first, last = (12 * x.year + x.month - 1 for x in (begin, end))
    months = next(x for x in (1, 2, 3, 6, *(12 * y for y in YEARS)) if 6 * x >= last - first)
    at = [m for m in range(first - first % months, last + 1, months) if m >= first]
    found = [datetime(m // 12, m % 12 + 1, 1, tzinfo=UTC).timestamp() for m in at]
    return [x for x in found if low <= x <= high]


def sample_note(metrics: Mapping[str, Any], part: str) -> str:
    """Return of how many events an MRR is and its standard error, "" if it is of all."""
    events, error = (metrics.get(f"{part}.mrr_{name}") for name in ("events", "error"))
    return "" if events is None or error is None else f"of {events:,.0f} events, ± {error:.4f}"
