"""report.html: one self-contained page about a run, that needs neither network nor JavaScript."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from tgflow.config import Config, is_unset, plain
from tgflow.report.chart import Chart, Line, render_chart
from tgflow.report.formatting import (
    compact,
    duration,
    num_bytes,
    rank_line,
    reuse_line,
    score,
    stream_time,
)
from tgflow.report.label_figures import labels_html
from tgflow.report.rejections import rejections
from tgflow.train.config import TrainingConfig

Record = Mapping[str, Any]
Tile = tuple[str, str, str]
"""Name, value and note of a headline figure."""


def continual_report(
    records: Sequence[Record],
    metrics: Mapping[str, Any],
    config: Config,
    stream: Record | None = None,
    num_damaged: int = 0,
) -> str:
    """Return the page of a `tgflow run`.

    Args:
        records: The lines of metrics.jsonl, in order.
        metrics: The content of metrics.json.
        config: The run's settings.
        stream: The content of stream.json, or None.
        num_damaged: Lines of metrics.jsonl that are not what was written, and left out.
    """
    flat = flatten(metrics)
    name = _stream_name(config)
    tiles = _continual_tiles(flat, config)
    charts = _continual_charts(records, config)
    title = f"{config.model.name.upper()} learning from {name}"
    lead = (
        f"Every micro-batch of {config.continual.batch_size} events was predicted first, then "
        "learned, then stored. What is plotted was measured before the model had seen the events."
    )
    if num_damaged:
        lead += f" {num_damaged:,} damaged records of metrics.jsonl are left out."
    more = "" if stream is None else _stream_html(stream)
    more += labels_html(flat, config.model.name) + _ranks_html(metrics.get("ranks", {}))
    return _page("continual run", title, lead, tiles, charts, flat, config, config.continual, more)


def offline_report(history: Sequence[Record], metrics: Mapping[str, Any], config: Config) -> str:
    """Return the page of a `tgflow train`.

    Args:
        history: One record an epoch, with `seed`, `epoch`, `loss` and `val.ap`.
        metrics: The content of metrics.json.
        config: The run's settings.
    """
    flat = flatten(metrics)
    tiles = _offline_tiles(flat, config)
    charts = _offline_charts(history)
    title = f"{config.model.name.upper()} trained on {_stream_name(config)}"
    lead = (
        "Chronological split: the first events train, the next choose the epoch, and the last are "
        "reported. Test figures are of the epoch with the best validation AP."
    )
    more = labels_html(flat, config.model.name)
    return _page("offline training", title, lead, tiles, charts, flat, config, config.offline, more)


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one, with keys joined by dots."""
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


def _stream_name(config: Config) -> str:
    return config.stream.path.replace("\\", "/").rsplit("/", 1)[-1].split(".")[0] or "a stream"


def _tile(
    flat: Mapping[str, Any], key: str, name: str, show: Callable[[float], str], note: str = ""
) -> list[Tile]:
    value = flat.get(key)
    return [] if value is None else [(name, show(float(value)), note)]


def _continual_tiles(flat: Mapping[str, Any], config: Config) -> list[Tile]:
    negatives = config.continual.mrr_negatives
    return [
        *_tile(flat, "prequential.ap", "Average precision", score, "prequential, over all events"),
        *_tile(flat, "prequential.mrr", "MRR", score, f"1 against {negatives} negatives"),
        *_tile(
            flat,
            "prequential.mrr_hist",
            "MRR, historical",
            score,
            f"1 against {config.continual.hist_negatives} pairs of the past",
        ),
        *_tile(flat, "prequential.auc", "AUC", score),
        *(
            tile
            for name in config.continual.metric_names
            for tile in _tile(flat, f"prequential.{name}", name, score, "mean over events")
        ),
        *_tile(flat, "events_per_second", "Events per second", compact, "predict + learn + store"),
        *_tile(flat, "num_events", "Events", compact, "in stream order"),
        *_tile(flat, "num_nodes", "Nodes", compact),
        *_tile(flat, "epoch_seconds", "Wall time", duration),
        *_tile(flat, "peak_rss_bytes", "Peak memory", num_bytes, "resident"),
        *_cache_tile(flat),
    ]


def _cache_tile(flat: Mapping[str, Any]) -> list[Tile]:
    table = "tables.edge_x"
    key = f"{table}.cache.hit_rate"
    if flat.get(key) is None:
        return []
    note = f"{flat[f'{table}.cache.capacity']:,} of {flat[f'{table}.rows']:,} rows fit"
    return _tile(flat, key, "Read from the cache", "{:.1%}".format, note)


def _offline_tiles(flat: Mapping[str, Any], config: Config) -> list[Tile]:
    negatives = config.offline.mrr_negatives
    return [
        *_tile(flat, "test.ap", "Test AP", score, _spread(flat, "test.ap_std")),
        *_tile(flat, "test.auc", "Test AUC", score, _spread(flat, "test.auc_std")),
        *_tile(flat, "test.mrr", "Test MRR", score, f"1 against {negatives} negatives"),
        *(
            tile
            for name in config.offline.metric_names
            for tile in _tile(
                flat, f"test.{name}", f"Test {name}", score, _spread(flat, f"test.{name}_std")
            )
        ),
        *_tile(flat, "val.ap", "Validation AP", score),
        *_tile(flat, "events_per_second", "Events per second", compact, "while training"),
        *_tile(flat, "epoch_seconds", "Epoch", duration),
        *_tile(flat, "num_events", "Events", compact),
        *_tile(flat, "peak_rss_bytes", "Peak memory", num_bytes, "resident"),
        *_cache_tile(flat),
        *_tile(flat, "reuse.reused", "Rows reused", compact, _reuse_note(flat)),
    ]


def _reuse_note(flat: Mapping[str, Any]) -> str:
    return reuse_line(flat) if "reuse.reused" in flat else ""


def _spread(flat: Mapping[str, Any], key: str) -> str:
    return f"± {flat[key]:.4f} over seeds" if flat.get(key) else ""


def _continual_charts(records: Sequence[Record], config: Config) -> list[Chart]:
    window = max(5, len(records) // 25)
    times = [float(r["t"]) for r in records]
    counts = [float(r["stop"]) for r in records]
    records = [{**r, "rate": (r["stop"] - r["start"]) / r["seconds"]} for r in records]
    first, last = (int(times[0]), int(times[-1])) if times else (0, 0)
    show_t, time_name = stream_time(first, last, config.stream.tick)
    over_time = {"x": times, "show_x": show_t, "x_name": time_name}
    over_events = {"x": counts, "show_x": compact, "x_name": "events"}
    events = window * config.continual.batch_size
    charts = [
        _curve(records, "metrics.ap", "Average precision", window, 1, over_time,
               f"mean of the last {events:,} events; dashed: since the start", wide=True),
        _curve(records, "metrics.mrr", "Mean reciprocal rank", window, 2, over_time,
               f"1 against {config.continual.mrr_negatives} negatives"),
        *(
            _curve(records, f"metrics.{name}", name, window, 2, over_time, "a metric of your own")
            for name in config.continual.metric_names
        ),
        _curve(records, "loss", "Loss", window, 3, over_events, "of the new and replayed events"),
        _curve(records, "rate", "Throughput", window, 1, over_events,
               "events per second, all steps", low=0.0, show_y=compact),
        _curve(records, "rss_bytes", "Memory", 1, 4, over_events, "resident, whole process",
               low=0.0, show_y=num_bytes),
    ]  # fmt: skip
    if any("edge_x.hit_rate" in r for r in records):
        note = "share of the edge features' rows found in the cache"
        charts.append(
            _curve(records, "edge_x.hit_rate", "Cache hits", window, 2, over_events, note, low=0.0)
        )
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
        since_start = [r.get(key.replace("metrics.", "prequential.")) for r in records]
        lines.append(Line("since the start", x, since_start, color, "dashed"))
    present = [y for y in mean if y is not None]
    if low is None and present:
        low = min(present)
    high = max(present) if present and key == "rate" else None
    return Chart(title, note, lines, axis["show_x"], show_y, axis["x_name"], low, high, wide)


def _offline_charts(history: Sequence[Record]) -> list[Chart]:
    seeds = sorted({r.get("seed", 0) for r in history})
    charts = []
    for key, title, note in (
        ("val.ap", "Validation AP", "by epoch, one line a seed"),
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
        charts.append(
            Chart(title, note, lines, lambda x: f"{x:.0f}", lambda y: f"{y:.4g}", "epoch", low,
                  None, key == "val.ap")
        )  # fmt: skip
    return charts


def _page(
    kind: str,
    title: str,
    lead: str,
    tiles: Sequence[Tile],
    charts: Sequence[Chart],
    flat: Mapping[str, Any],
    config: Config,
    training: TrainingConfig,
    more: str = "",
) -> str:
    body = f"""<dl class="tiles">{tiles_html(tiles)}</dl>
<div class="charts">{"".join(render_chart(chart) for chart in charts)}</div>
{more}<h2>Protocol</h2>
<div class="card">{table_html(_protocol(flat, training))}</div>
<h2>Settings</h2>
<div class="card settings">{_settings_html(config, training)}</div>"""
    return page_html(kind, title, lead, body, str(flat.get("machine.tgflow", "")))


def page_html(kind: str, title: str, lead: str, body: str, version: str) -> str:
    """Return a page that needs nothing else.

    Args:
        kind: What it is about, in two words.
        title: Its heading.
        lead: What to know before reading it.
        body: HTML of all the rest.
        version: Of the tgflow that made what it shows.
    """
    here = files("tgflow.report")
    css = here.joinpath("page.css").read_text(encoding="utf-8")
    js = here.joinpath("page.js").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)} · tgflow</title>
<style>{css}</style>
</head>
<body>
<main>
<header>
<div class="eyebrow"><b>tgflow</b> · {escape(kind)}</div>
<h1>{escape(title)}</h1>
<p>{escape(lead)}</p>
</header>
{body}
<footer>Written by tgflow {escape(version)}. All figures are in
metrics.json; <code>--config config.toml</code> starts the same run again.</footer>
</main>
<script>{js}</script>
</body>
</html>
"""


def tiles_html(tiles: Sequence[Tile]) -> str:
    """Return headline figures as HTML."""
    parts = []
    for i, (name, value, note) in enumerate(tiles):
        text = re.sub(r" ([a-zA-Zµ]+) ?", r"<small>\1</small>", escape(value))
        lead = ' class="lead"' if i < 2 else ""
        parts.append(
            f"<div{lead}><dt>{escape(name)}</dt><dd>{text}</dd>"
            f'<span class="note">{escape(note)}</span></div>'
        )
    return "".join(parts)


def _protocol(flat: Mapping[str, Any], training: TrainingConfig) -> list[tuple[str, str]]:
    """Return what one must know to compare the figures with others'."""
    sees = {
        "batch": "batch: a query sees the state at the start of its batch",
        "event": "event: a query sees every event strictly before it",
    }
    machine = ", ".join(
        f"{key.removeprefix('machine.')} {value}"
        for key, value in flat.items()
        if key.startswith("machine.")
    )
    negatives = flat.get("negatives", "random")
    rows = [
        ("Protocol", str(flat.get("protocol_line") or flat.get("protocol", ""))),
        ("Ties", _ties(flat.get("tied_share"))),
        ("Visibility", sees[training.visibility]),
        ("Negatives", f"{negatives}; 1 for AP and AUC, {training.mrr_negatives} for MRR"),
        ("Averages", "AP and AUC over batches, MRR over events"),
        ("Batch", f"{training.batch_size} events"),
        ("Seeds", ", ".join(map(str, flat.get("seeds", [training.seed])))),
        ("Machine", machine),
    ]
    return [(name, value) for name, value in rows if value]


def _ties(share: float | None) -> str:
    """Return in words how many events have no place of their own in time."""
    return "" if share is None else f"{share:.1%} of the events have the time of the one before"


def _stream_html(stream: Record) -> str:
    """Return what became of the stream's rows; whatever they held is text and nothing else."""
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
    return f'<h2>Stream</h2><div class="card">{table_html(rows)}</div>'


def _ranks_html(ranks: Mapping[str, Record]) -> str:
    """Return how each rank was, if there were several."""
    if not ranks:
        return ""
    rows = [(f"rank {rank}", rank_line(figures)) for rank, figures in ranks.items()]
    return f'<h2>Ranks</h2><div class="card">{table_html(rows)}</div>'


def _settings_html(config: Config, training: TrainingConfig) -> str:
    parts = []
    others = ("offline", "reuse") if training is config.continual else ("continual",)
    for section, settings in plain(config).items():
        if section in (*others, "compare"):
            continue
        rows = [(k, "not set" if is_unset(v) else _shown(v)) for k, v in settings.items()]
        parts.append(f"<section><h3>[{section}]</h3>{table_html(rows)}</section>")
    return "".join(parts)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} = {v}" for k, v in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    return str(value) or "–"


def table_html(rows: Sequence[tuple[str, str]]) -> str:
    """Return names and values as HTML; they are texts and nothing else."""
    cells = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in rows)
    return f"<table>{cells}</table>"
