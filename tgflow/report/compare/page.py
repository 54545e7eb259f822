"""report.html of a comparison: one page that needs neither network nor JavaScript."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tgflow.base.resampling import Interval
from tgflow.report.chart import Chart, Line, Scatter, calibration_chart
from tgflow.report.compare.analysis import Analysis, running_means
from tgflow.report.formatting import compact, num_bytes, score
from tgflow.report.label_figures import named
from tgflow.report.page import Card, Cell, render_page, stream_name

MAX_POINTS = 480


def comparison_page(analysis: Analysis) -> str:
    """Return the page of a comparison."""
    summary = analysis.outcome.summary
    stream = stream_name(str(summary.get("stream", "")))
    best = next(iter(analysis.leading[1].means))
    seeds = max(len(keys) for keys in analysis.keys.values())
    num = len(analysis.keys)
    title = f"{f'{num} models' if num > 1 else best} on {stream}"
    title += f": {best} is ahead" if num > 1 else ""
    lead = (
        f"Every model predicted the same {analysis.num_events:,} events and the same "
        f"negatives, {'each with one seed' if seeds == 1 else f'with up to {seeds} seeds'}. "
        "Intervals hold 95 % of resamples of blocks of "
        f"{analysis.mrr.block:,} consecutive events ({analysis.mrr.num_blocks} blocks); "
        "p is that of no difference from the best model, corrected for all pairs (Holm)."
    )
    parts = [
        *_label_parts(analysis),
        _leaderboard(analysis),
        Card(figures=[chart.figure() for chart in _charts(analysis)]),
        _differences(analysis),
        *([_worths(analysis)] if analysis.worths else []),
        _slices(analysis),
        Card("Protocol", _protocol(analysis)),
    ]
    version = str(summary.get("machine", {}).get("tgflow", ""))
    return render_page("comparison", title, lead, _tiles(analysis), parts, version)


def _label_parts(analysis: Analysis) -> list[Card]:
    if (table := analysis.label_table()) is None:
        return []
    head, rows = table
    notes = [
        "The interval and p are of the first figure, over the same events for all models. "
        "Baselines see the same labels as the models."
    ]
    card = Card("Labels", rows, head, notes)
    if analysis.labels is None:
        return [card]
    windows, colors = [float(window.stop) for window in analysis.windows()], _colors(analysis)
    lines = [
        _line(label, windows, found, colors[label])
        for label, found in analysis.label_windows().items()
    ]
    note = f"by window of {len(windows)}, mean over seeds; predicted before they were learned"
    charts = [_chart(analysis.leading[0], note, lines, wide=True)]
    if shares := analysis.calibration():
        of = named(analysis.outcome.summary, "", "label 1")
        charts.append(calibration_chart(shares, [colors[label] for label in shares], of))
    return [card, Card(figures=[each.figure() for each in charts])]


def _tiles(analysis: Analysis) -> list[tuple[str, str, str]]:
    best, best_ap = next(iter(analysis.mrr.means)), next(iter(analysis.ap.means))
    costs = {label: analysis.cost(label) for label in analysis.keys}
    cheapest = min(costs, key=lambda label: costs[label])
    summary = analysis.outcome.summary
    name, leading = analysis.leading
    first = next(iter(leading.means))
    links = " of links" if analysis.labels else ""
    lead = [(f"Best {name}", score(leading.means[first].mean), first)] if analysis.labels else []
    tiles = [
        *lead,
        (f"Best MRR{links}", score(analysis.mrr.means[best].mean), best),
        (f"Best AP{links}", score(analysis.ap.means[best_ap].mean), best_ap),
        ("Cheapest", f"{compact(costs[cheapest])} µs", f"an event: {cheapest}"),
        ("Events", compact(analysis.num_events), "that all models scored"),
    ]
    if peak := summary.get("peak_rss_bytes"):
        tiles.append(("Peak memory", num_bytes(peak), "resident, all models together"))
    return tiles


def _leaderboard(analysis: Analysis) -> Card:
    own = analysis.own_metrics
    found = ("MRR", "p", *analysis.mrr_parts, "AP", "p", *own)
    head = ("model", *found, "seeds", "µs an event", "state", "parameters")
    rows: list[tuple[Cell, ...]] = []
    for label, interval in analysis.mrr.means.items():
        first, *_ = analysis.of_label(label)
        means = analysis.reciprocal_ranks[label].mean(axis=1)
        spread = f"; ± {np.std(means, ddof=1):.4f} over seeds" if len(means) > 1 else ""
        mrr, span = _with_interval(interval)
        parts = {"compute": "compute", "commit": "store", "preparation": "prepare"}
        cost = ", ".join(f"{text} {compact(first['microseconds'][k])}" for k, text in parts.items())
        rows.append(
            (
                label,
                (mrr, span + spread),
                _p(analysis.mrr.p_of_best(label)),
                *analysis.of_mrr_parts(label),
                _with_interval(analysis.ap.means[label]),
                _p(analysis.ap.p_of_best(label)),
                *(score(analysis.own_metric(label, name)) for name in own),
                str(len(analysis.keys[label])),
                (compact(analysis.cost(label)), cost),
                num_bytes(sum(first["bytes"].values())),
                f"{first['num_parameters']:,}",
            )
        )
    dropped = [
        f"{key} dropped out at event {failure['at']:,}: {failure['reason']}"
        for key, failure in analysis.failures().items()
    ]
    return Card("Links" if analysis.labels else "Leaderboard", rows, head, dropped)


def _p(value: float | None) -> str:
    return "best" if value is None else f"{value:.4f}"


def _with_interval(interval: Interval) -> tuple[str, str]:
    return score(interval.mean), f"{interval.low:.4f} to {interval.high:.4f}"


def _charts(analysis: Analysis) -> Iterable[Chart | Scatter]:
    yield _curves(analysis)
    yield _costs(analysis)
    windows = [float(window.stop) for window in analysis.windows()]
    yield _by_window(analysis, windows)
    drift = analysis.drift(float(analysis.outcome.summary.get("seconds_per_tick", 1.0)))
    shares = {name: drift[name] for name in ("repeats", "new nodes", "ties", "shift")}
    lines = [_line(name, windows, y, c) for c, (name, y) in enumerate(shares.items(), 1)]
    note = "shares of the events; shift: of destinations from the window before, in bits"
    yield _chart("Stream statistics", note, lines)
    days = [_line("events a day", windows, drift["events a day"], 1)]
    yield _chart("Events a day", "by window", days, show_y=compact, low=0.0)


def _chart(
    title: str,
    note: str,
    lines: Sequence[Line],
    *,
    wide: bool = False,
    low: float | None = None,
    show_y: Callable[[float], str] = lambda y: f"{y:.3g}",
) -> Chart:
    return Chart(title, note, lines, compact, show_y, "events", low, None, wide)


def _line(
    name: str, x: Sequence[float], y: Iterable[float], color: int, style: str = "bold"
) -> Line:
    return Line(name, x, [None if math.isnan(v) else float(v) for v in y], color, style)


def _colors(analysis: Analysis) -> dict[str, int]:
    return {label: 1 + number % 8 for number, label in enumerate(analysis.mrr.means)}


def _curves(analysis: Analysis) -> Chart:
    size = max(1, analysis.num_events // 25)
    places = np.unique(np.linspace(0, analysis.num_events - 1, MAX_POINTS).astype(int))
    x = [float(place + 1) for place in places]
    lines = [
        _line(
            label,
            x,
            running_means(analysis.reciprocal_ranks[label].mean(axis=0), size)[places],
            color,
            "bold" if number < 8 else "dashed",
        )
        for number, (label, color) in enumerate(_colors(analysis).items())
    ]
    note = f"mean of the last {size:,} events and over seeds; predicted before they were learned"
    return _chart("Mean reciprocal rank", note, lines, wide=True)


def _costs(analysis: Analysis) -> Scatter:
    name, leading = analysis.leading
    means, color = leading.means, _colors(analysis)
    points = [
        (label, max(analysis.cost(label), 1e-3), means[label].mean, color[label]) for label in means
    ]
    return Scatter(
        "Accuracy against cost",
        f"{name}; dashed: models better than all that cost no more",
        points,
        analysis.pareto(),
        "microseconds an event (compute + store + prepare), logarithmic",
        compact,
        lambda y: f"{y:.3g}",
    )


def _by_window(analysis: Analysis, windows: Sequence[float]) -> Chart:
    lines = []
    for label, color in _colors(analysis).items():
        ranks = analysis.reciprocal_ranks[label]
        by_seed = np.stack([ranks[:, each].mean(axis=1) for each in analysis.windows()], axis=1)
        lines.append(_line(label, windows, by_seed.mean(axis=0), color))
        if len(by_seed) > 1:
            lines += [
                _line(f"{label}, a seed", windows, edge, color, "faint")
                for edge in (by_seed.min(axis=0), by_seed.max(axis=0))
            ]
    return _chart("Drift", f"MRR by window of {len(windows)}; faint: best and worst seed", lines)


def _worths(analysis: Analysis) -> Card:
    head = ("model", "ahead of its frozen copy by, in MRR", "chance that it is ahead", "events")
    rows = [
        (each.origin, _with_interval(each.since), f"{each.chance:.3f}", f"{each.num_events:,}")
        for each in analysis.worths
    ]
    note = "Over all events after the copies were frozen."
    return Card("Gain from continued learning", rows, head, [note])


def _differences(analysis: Analysis) -> Card:
    head = ("better", "than", "by, in MRR", "chance that it is", "p, Holm", "by, in AP", "p, Holm")
    rows = []
    for each in analysis.mrr.differences:
        other = analysis.ap.between(each.first, each.second)
        sign = 1 if other.first == each.first else -1
        by = sorted((sign * other.interval.low, sign * other.interval.high))
        rows.append(
            (
                each.first,
                each.second,
                _with_interval(each.interval),
                f"{each.chance:.3f}",
                f"{each.p_holm:.4f}",
                _with_interval(Interval(sign * other.interval.mean, by[0], by[1])),
                f"{other.p_holm:.4f}",
            )
        )
    return Card("Differences", rows, head)


def _slices(analysis: Analysis) -> Card:
    labels = list(analysis.mrr.means)
    rows: list[tuple[Cell, ...]] = []
    for each in analysis.slices:
        best = max(each.mrr[label].mean for label in labels)
        cells = []
        for label in labels:
            found, ap = each.mrr[label], each.ap[label]
            small = f"{found.low:.3f} to {found.high:.3f}; AP {ap:.3f}"
            cells.append((score(found.mean), small, "best" if found.mean == best else ""))
        rows.append((each.name, f"{each.num:,}", *cells))
    return Card("Slices", rows, ("slice", "events", *labels))


def _protocol(analysis: Analysis) -> list[tuple[str, str]]:
    summary = analysis.outcome.summary
    machine = ", ".join(f"{key} {value}" for key, value in summary.get("machine", {}).items())
    rows = [
        ("Protocol", str(summary.get("protocol_line", ""))),
        ("Negatives", f"the same for all, drawn with data_seed {summary.get('data_seed')}"),
        ("Preset", str(summary.get("preset_line", ""))),
        ("Cost", "each model's own compute and store, and its batches as if prepared for it alone"),
        ("AP", f"over batches of {analysis.batch_size} events, one negative each"),
        ("Machine", machine),
    ]
    return [(name, value) for name, value in rows if value]
