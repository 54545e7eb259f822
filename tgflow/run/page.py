"""report.html: the page about a run or an offline training."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from tgflow.base.choices import METRIC_TITLES
from tgflow.base.units import duration, seconds_per_tick
from tgflow.report.board import board_card
from tgflow.report.chart import Chart, Line, calibration_chart, round_ticks_inside
from tgflow.report.formatting import (
    compact,
    num_bytes,
    rank_line,
    reuse_line,
    sample_note,
    score,
    stream_time,
)
from tgflow.report.label_figures import RULES, figure_name, label_table, late_text, named, task_of
from tgflow.report.page import Card, Rows, Tile, render_page, stream_name
from tgflow.run.config import Config, is_unset, plain
from tgflow.run.rejections import rejections
from tgflow.train.config import (
    FURTHER,
    ContinualConfig,
    OfflineConfig,
    TrainingConfig,
    parse_further,
)

Record = Mapping[str, Any]


def continual_report(
    records: Sequence[Record],
    metrics: Mapping[str, Any],
    c: ContinualConfig,
    settings: Mapping[str, Any],
    unit: str,
    stream: Record | None = None,
    num_damaged: int = 0,
) -> str:
    """Return the page of a `tgflow run` with `settings` by section, with times in `unit`."""
    flat, model = flatten(metrics), settings["model"]["name"]
    tiles = _continual_tiles(flat, c)
    why = "Nothing was measured."
    if stream is not None and not records:
        read, good = (f"{stream['counts'][name]:,}" for name in ("read", "accepted"))
        why = f"No event was learned: {read} rows were read, and {good} accepted (see Stream)."
    charts = _continual_charts(records, flat, c, unit, why)
    title = f"{model.upper()} learning from {stream_name(settings['stream']['path'])}"
    lead = (
        f"Every micro-batch of {c.batch_size} events was predicted first, then "
        "learned, then stored. Plotted values were measured before the model had seen the events."
    )
    if num_damaged:
        lead += f" {num_damaged:,} damaged records of metrics.jsonl are skipped."
    more = _label_cards(flat, model)
    more += [] if stream is None else [_stream_card(stream)]
    if ranks := metrics.get("ranks"):
        more.append(Card("Ranks", [(f"rank {rank}", rank_line(x)) for rank, x in ranks.items()]))
    shown = _settings(settings, {"compare", "reuse"}, ContinualConfig)
    return _page("continual run", title, lead, tiles, charts, flat, c, shown, more)


def offline_report(
    history: Sequence[Record],
    metrics: Mapping[str, Any],
    c: OfflineConfig,
    settings: Mapping[str, Any],
) -> str:
    """Return the page of a `tgflow train` with `settings` by section."""
    flat, model = flatten(metrics), settings["model"]["name"]
    charts, tiles = _offline_charts(history, c.select_metric), _offline_tiles(flat, c)
    best = METRIC_TITLES[c.select_metric]
    title = f"{model.upper()} trained on {stream_name(settings['stream']['path'])}"
    lead = (
        "Chronological split: the first events train, the next choose the epoch, and the last are "
        f"reported. Test figures are of the epoch with the best validation {best}."
    )
    more = _label_cards(flat, model)
    more += [] if (card := board_card(metrics)) is None else [card]
    shown = _settings(settings, {"compare"}, OfflineConfig)
    return _page("offline training", title, lead, tiles, charts, flat, c, shown, more)


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def rolling_mean(records: Sequence[Record], key: str, window: int) -> list[float | None]:
    """Return for each record the mean of `key` over it and the `window - 1` before it."""
    means: list[float | None] = []
    for i in range(len(records)):
        part = [r[key] for r in records[max(0, i + 1 - window) : i + 1] if r.get(key) is not None]
        means.append(sum(part) / len(part) if part else None)
    return means


Spec = tuple[str, str, Callable[[float], str], str]
"""Key of a figure, its name, how to write it, and a note."""


def _tiles(flat: Mapping[str, Any], specs: Sequence[Spec]) -> list[Tile]:
    hits, table = "tables.edge_x.cache", "tables.edge_x"
    if flat.get(f"{hits}.hit_rate") is not None:
        note = f"{flat[f'{hits}.capacity']:,} of {flat[f'{table}.rows']:,} rows fit"
        specs = [*specs, (f"{hits}.hit_rate", "Read from the cache", "{:.1%}".format, note)]
    return [(name, show(float(flat[key])), note) for key, name, show, note in specs
            if flat.get(key) is not None]  # fmt: skip


def _against(flat: Mapping[str, Any], c: TrainingConfig) -> str:
    """Return what an event is ranked among."""
    if c.mrr_negatives != "all":
        return f"1 against {c.mrr_negatives} negatives"
    num = flat.get("mrr_destinations")
    return "among all destinations" if num is None else f"among all {num:,} destinations"


def _of_some(flat: Mapping[str, Any], c: ContinualConfig, key: str) -> str:
    """Return which events an MRR of some is of, and what they are ranked among."""
    num = flat.get(f"prequential.{key}_events")
    among = {
        FURTHER[kind]: f"1 against {num} {kind}"
        for kind, num in parse_further(c.mrr_further).items()
    }
    return ", ".join(filter(None, (among.get(key), num and f"{num:,.0f} events")))


def _continual_tiles(flat: Mapping[str, Any], c: ContinualConfig) -> list[Tile]:
    own: list[Spec] = [
        (f"prequential.{name}", name, score, "mean over events") for name in c.metric_names
    ]
    links = " of links" if task_of(flat) else ""
    return _tiles(flat, [
        *_task_specs(flat),
        ("prequential.ap", f"Average precision{links}", score, "prequential, over all events"),
        ("prequential.mrr", f"MRR{links}", score, ", ".join(filter(None, (
            _against(flat, c), sample_note(flat, "prequential"))))),
        *((f"prequential.{key}", name, score, _of_some(flat, c, key))
          for key, name in METRIC_TITLES.items() if key.startswith("mrr_")),
        ("prequential.auc", f"AUC{links}", score, ""),
        *own,
        ("events_per_second", "Events per second", compact, "predict + learn + store"),
        ("num_events", "Events", compact, "in stream order"),
        ("num_nodes", "Nodes", compact, ""),
        ("epoch_seconds", "Wall time", duration, ""),
        ("peak_rss_bytes", "Peak memory", num_bytes, "resident"),
    ])  # fmt: skip


def _offline_tiles(flat: Mapping[str, Any], c: OfflineConfig) -> list[Tile]:

    def spread(name: str) -> str:
        deviation = flat.get(f"test.{name}_std")
        return f"± {deviation:.4f} over seeds" if deviation else ""

    own: list[Spec] = [
        (f"test.{name}", f"Test {name}", score, spread(name)) for name in c.metric_names
    ]
    notes = {"ap": "", "auc": "", "mrr": _against(flat, c)}
    first = METRIC_TITLES[c.select_metric]
    return _tiles(flat, [
        *_task_specs(flat),
        *(
            (f"test.{name}", f"Test {METRIC_TITLES[name]}", score, notes[name] or spread(name))
            for name in dict.fromkeys((c.select_metric, *notes))
        ),
        *own,
        (f"val.{c.select_metric}", f"Validation {first}", score, ""),
        ("events_per_second", "Events per second", compact, "while training"),
        ("epoch_seconds", "Epoch", duration, ""),
        ("num_events", "Events", compact, ""),
        ("peak_rss_bytes", "Peak memory", num_bytes, "resident"),
        ("reuse.reused", "Rows reused", compact,
         reuse_line(flat) if "reuse.reused" in flat else ""),
    ])  # fmt: skip


def _task_specs(flat: Mapping[str, Any]) -> list[Spec]:
    """Return the figure that a task is judged by, which leads."""
    if (found := task_of(flat)) is None:
        return []
    prefix, key = found
    name = figure_name(f"{prefix.partition('.')[2]}.{key}", flat)
    low, high = (flat.get(f"{prefix}.{key}_{end}") for end in ("low", "high"))
    note = "" if low is None or high is None else f"95 %: {low:.3f} to {high:.3f}"
    return [(f"{prefix}.{key}", name, score, note)]


def _task_charts(
    records: Sequence[Record],
    flat: Mapping[str, Any],
    window: int,
    axis: Mapping[str, Any],
    days: float | None,
) -> list[Chart]:
    """Return the curve of a task's figure, its calibration, and what reviews of events find."""
    if (found := task_of(flat)) is None:
        return []
    prefix, key = found
    task = prefix.partition(".")[2]
    name = figure_name(f"{task}.{key}", flat)
    of = "running" if key == "ap" else "metrics"
    chart = _curve(records, f"{of}.{task}.{key}", name, 1 if key == "ap" else window,
                   4, axis, "of recent events; dashed: since the start", wide=True)  # fmt: skip
    charts = [replace(chart, lines=[*chart.lines, *_label_levels(flat, prefix, key, axis["x"])])]
    shares = {i: flat.get(f"{prefix}.calibration.{i}") for i in range(10)}
    measured = {i: share for i, share in shares.items() if share is not None}
    if measured:
        charts.append(calibration_chart({"measured": measured}, [4], named(flat, "", "label 1")))
    return charts + _review_charts(flat, prefix, days)


REVIEWS = {10: 3, 100: 4}
"""Costs of a missed positive in reviews, and their colors."""


def _review_charts(flat: Mapping[str, Any], prefix: str, days: float | None) -> list[Chart]:
    """Return precision at k, and what reviewing the k events of the highest scores costs.

    The k events are those above one threshold over the whole run, k by `days` a day of it. The
    cost is k reviews, and for each positive below the threshold that of `REVIEWS` reviews; as a
    share of the cost of no review.
    """
    key, positives = f"{prefix}.precision_at.", flat.get(f"{prefix}.num_positives")
    at = {int(name.removeprefix(key)): x for name, x in flat.items() if name.startswith(key)}
    if not at or not positives:
        return []
    x, base = [math.log10(k / (days or 1)) for k in at], positives / flat[f"{prefix}.num_labels"]
    found = [Line("precision", x, [*at.values()], 1, fill=True),
             Line("share of positives", x, [base] * len(x), 3, "dashed")]  # fmt: skip
    raised, known = flat.get("alerts.num_alerts"), flat.get("alerts.num_known")
    if raised and known:
        per_day = math.log10(raised / (flat["alerts.num_days"] if days else 1))
        found.append(Line("alerts raised", [per_day], [flat["alerts.num_positive"] / known], 4))
    caught = {k: k * precision / positives for k, precision in at.items()}
    spent = [Line("caught", x, [*caught.values()], 2, fill=True)]
    for each, color in REVIEWS.items():
        costs = [k / (each * positives) + 1 - share for k, share in caught.items()]
        shown = [cost if cost <= 1 else None for cost in costs]
        spent.append(Line(f"cost, {each} reviews a missed one", x, shown, color))

    def chart(title: str, note: str, lines: Sequence[Line]) -> Chart:
        name = f"events reviewed {'a day' if days else 'in all'}"
        decades = lambda low, high: [*range(math.ceil(low), math.floor(high) + 1)]  # noqa: E731
        axes = lambda x: compact(10**x), "{:.0%}".format, name
        return Chart(title, note, lines, *axes, 0.0, 1.0, ticks_x=decades)

    of, cheap = named(flat, " of ", " of labels"), "cost as a share of that of no review"
    return [chart(f"Precision at k{of}", "among the highest scores of the run", found),
            chart("Positives caught, and cost", cheap, spent)]  # fmt: skip


def _label_levels(flat: Mapping[str, Any], prefix: str, key: str, x: Sequence[float]) -> list[Line]:
    """Return lines at the figure of the best rule, and of AP at the share of positives."""
    rules = {text: flat.get(f"{prefix}.{rule}.{key}") for rule, text in RULES.items()}
    known = {text: value for text, value in rules.items() if value is not None}
    levels = []
    if known:
        best = max(known, key=lambda text: known[text])
        levels.append((f"best rule: {best}", known[best], 2))
    if key == "ap" and (positives := flat.get(f"{prefix}.num_positives")) is not None:
        levels.append(("share of positives", positives / flat[f"{prefix}.num_labels"], 3))
    return [Line(name, x, [value] * len(x), color, "dashed") for name, value, color in levels]


def _continual_charts(
    records: Sequence[Record],
    flat: Mapping[str, Any],
    c: ContinualConfig,
    tick: str,
    why_empty: str,
) -> list[Chart]:
    window = max(5, len(records) // 25)
    times = [float(r["t"]) for r in records]
    counts = [float(r["stop"]) for r in records]
    records = [{**r, "rate": (r["stop"] - r["start"]) / r["seconds"]} for r in records]
    first, last = (int(times[0]), int(times[-1])) if times else (0, 0)
    show_t, time_name, time_ticks = stream_time(first, last, tick)
    days = None if tick == "tick" else max(1.0, (last - first) * seconds_per_tick(tick) / 86_400)
    axis = {"x": times, "show_x": show_t, "x_name": time_name, "ticks": time_ticks}
    over_time = axis | {"why_empty": why_empty}
    axis = {"x": counts, "show_x": compact, "x_name": "events", "ticks": round_ticks_inside}
    over_events = axis | {"why_empty": why_empty}
    events, links = window * c.batch_size, " of links" if task_of(flat) else ""
    charts = [
        *_task_charts(records, flat, window, over_time, days),
        _curve(records, "metrics.ap", f"Average precision{links}", window, 1, over_time,
               f"mean of the last {events:,} events; dashed: since the start", wide=True),
        _curve(records, "metrics.mrr", f"Mean reciprocal rank{links}", window, 2, over_time,
               _against({}, c)),
        *(
            _curve(records, f"metrics.{name}", name, window, 2, over_time, "a metric of your own")
            for name in c.metric_names
        ),
        _curve(records, "loss", "Loss", window, 3, over_events, "of the new and replayed events"),
        _curve(records, "rate", "Throughput", window, 1, over_events,
               "events per second, all steps", low=0.0, show_y=compact),
        _curve(records, "rss_bytes", "Memory", 1, 4, over_events, "resident, whole process",
               low=0.0, show_y=num_bytes),
    ]  # fmt: skip
    hits, note = "edge_x.hit_rate", "share of the edge features' rows found in the cache"
    if any(hits in r for r in records):
        charts.append(_curve(records, hits, "Cache hits", window, 2, over_events, note, low=0.0))
    return charts


def _curve(
    records: Sequence[Record],
    key: str,
    title: str,
    window: int,
    color: int,
    axis: Mapping[str, Any],
    note: str,
    *,
    wide: bool = False,
    low: float | None = None,
    show_y: Callable[[float], str] = lambda y: f"{y:.3g}",
) -> Chart:
    """Return a chart of one record key: as measured (faint), rolling, and if wide, its mean."""
    x, raw = axis["x"], [r.get(key) for r in records]
    mean = rolling_mean(records, key, window)
    lines = [Line(title, x, mean, color, fill=True)]
    if window > 1:
        lines.insert(0, Line("each batch", x, raw, color, "faint"))
    if wide:
        since_start = [r.get(f"prequential.{key.partition('.')[2]}") for r in records]
        lines.append(Line("since the start", x, since_start, color, "dashed"))
    present = [y for y in mean if y is not None]
    if low is None and present:
        low = min(present)
    high = max(present) if present and key == "rate" else None
    return Chart(title, note, lines, axis["show_x"], show_y, axis["x_name"], low, high, wide,
                 axis["ticks"], axis["why_empty"])  # fmt: skip


def _offline_charts(history: Sequence[Record], metric: str) -> list[Chart]:
    seeds = sorted({r.get("seed", 0) for r in history})
    charts = []
    for key, title, note in (
        (f"val.{metric}", f"Validation {METRIC_TITLES[metric]}", "by epoch, one line a seed"),
        ("loss", "Training loss", "by epoch, one line a seed"),
        ("seconds", "Seconds per epoch", "training part"),
        ("edge_x.hit_rate", "Cache hits", "share of the edge features' rows, validation included"),
    ):
        if key == "edge_x.hit_rate" and not any(key in r for r in history):
            continue
        lines = []
        for color, seed in enumerate(seeds):
            part = [r for r in history if r.get("seed", 0) == seed and key in r]
            x, y = [float(r["epoch"] + 1) for r in part], [r[key] for r in part]
            lines.append(Line(f"seed {seed}", x, y, 1 + color % 4, fill=len(seeds) == 1))
        low = 0.0 if key in ("seconds", "edge_x.hit_rate") else None
        axes = "{:.0f}".format, "{:.4g}".format, "epoch"
        charts.append(Chart(title, note, lines, *axes, low, wide=key == f"val.{metric}"))
    return charts


def _page(
    kind: str,
    title: str,
    lead: str,
    tiles: Sequence[Tile],
    charts: Sequence[Chart],
    flat: Mapping[str, Any],
    training: TrainingConfig,
    settings: tuple[Groups, Groups],
    more: Sequence[Card],
) -> str:
    own, defaults = settings
    parts = [
        Card(figures=[chart.figure() for chart in charts]),
        *more,
        Card("Protocol", _protocol(flat, training)),
        Card("Settings", groups=own, folded=defaults),
    ]
    return render_page(kind, title, lead, tiles, parts, str(flat.get("machine.tgflow", "")))


def _protocol(flat: Mapping[str, Any], training: TrainingConfig) -> list[tuple[str, str]]:
    sees = {
        "batch": "batch: a query sees the state at the start of its batch",
        "event": "event: a query sees every event strictly before it",
    }
    machine = ", ".join(
        f"{key.removeprefix('machine.')} {value}"
        for key, value in flat.items()
        if key.startswith("machine.")
    )
    tested, tied = flat.get("test_negatives", "random"), flat.get("tied_share")
    ties = "" if tied is None else f"{tied:.1%} of the events have the time of the one before"
    rows = [
        ("Protocol", str(flat.get("protocol_line") or flat.get("protocol", ""))),
        ("Ties", ties),
        ("Visibility", sees[training.visibility]),
        ("Negatives", f"{tested}; 1 for AP and AUC, {training.mrr_negatives} for MRR"),
        ("Learned from", str(flat.get("negatives", ""))),
        ("Averages", "AP and AUC over batches, MRR over events"),
        ("Batch", f"{training.batch_size} events"),
        ("Seeds", ", ".join(map(str, flat.get("seeds", [training.seed])))),
        ("Machine", machine),
    ]
    return [(name, value) for name, value in rows if value]


def _stream_card(stream: Record) -> Card:
    counts = stream["counts"]
    parts = ("read", "accepted", "late", "malformed", "duplicate", "buffered", "forced")
    names = {"read": "Rows read", "buffered": "Waiting", "forced": "Forced watermarks"}
    rows = [(names.get(p, p.capitalize()), f"{counts[p]:,}") for p in parts]
    gaps = sum(len(each["gaps"]) for each in counts["partitions"].values())
    rows.append(("Gaps", f"{gaps:,}"))
    rows += [(name.replace("_", " "), f"{value:g}") for name, value in stream["counters"].items()]
    for code, partition, count, first, last, example in rejections(stream):
        places = f"{count} in partition {partition}, first {first}, last {last}"
        rows.append((f"rejected: {code}", f"{places}; {example}"))
    return Card("Stream", rows)


def _label_cards(flat: Mapping[str, Any], model: str) -> list[Card]:
    if (found := label_table(flat, model)) is None:
        return []
    note = "95 % intervals take events as independent. Baselines see the same labels as the model."
    notes = [note, *filter(None, [late_text(flat).capitalize()])]
    card = Card("Labels" + named(flat, " of "), found[1], found[0], notes)
    return [card, *_alert_cards(flat)]


def _alert_cards(flat: Mapping[str, Any]) -> list[Card]:
    from tgflow.train.alerts import KEPT  # here: help and errors need no torch

    if (num := flat.get("alerts.num_alerts")) is None:
        return []
    known, positive = flat["alerts.num_known"], flat["alerts.num_positive"]
    share = f", {positive / known:.1%}" if known else ""
    rows = [
        ("Budget", f"{flat['alerts.budget']:,} a day"),
        ("Alerts", f"{num:,} on {flat['alerts.num_days']:,} days with events"),
        ("Positive" + named(flat, ", "), f"{positive:,} of {known:,} with a known label{share}"),
    ]
    notes = [f"Of labels the latest {KEPT:,} alerts are counted."] if num > KEPT else []
    return [Card("Alerts", rows, notes=notes)]


Groups = list[tuple[str, Rows]]
"""Settings by section."""


def _settings(
    settings: Mapping[str, Any], others: Collection[str], training: type[TrainingConfig]
) -> tuple[Groups, Groups]:
    """Return the settings but those of `others`: which differ from the defaults, and the rest."""
    own = {each.name for each in fields(training)}
    usual = plain(Config())
    found: dict[bool, Groups] = {True: [], False: []}  # by whether they differ
    for section, values in settings.items():
        rows: dict[bool, list[tuple[str, str]]] = {True: [], False: []}
        for key, value in values.items():
            if section == "learning" and key not in own:
                continue
            text = "not set" if is_unset(value) else _shown(value)
            rows[value != usual.get(section, {}).get(key)].append((key, text))
        for is_own, part in rows.items():
            if part and section not in others:
                found[is_own].append((f"[{section}]", part))
    return found[True], found[False]


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} = {v}" for k, v in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    return str(value) or "–"
