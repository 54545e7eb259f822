"""What `tgflow info` says of a stream."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch import Tensor

from tgflow.cli import assemble
from tgflow.cli.guards import warn
from tgflow.config import Config
from tgflow.events import EventBatch, concat
from tgflow.presets import measure
from tgflow.report.formatting import duration, stream_time
from tgflow.report.table_text import print_table
from tgflow.streams import playback
from tgflow.streams.rows.schema import listed
from tgflow.units import seconds_per_tick

QUANTILES = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def describe_stream(config: Config, as_json: bool) -> None:
    """Read the whole stream of `config` and print what is in it."""
    source = assemble.open_source(config)
    events = concat(list(playback(source, limit=config.stream.limit)))
    nodes = assemble.open_node_features(config, source.ids)
    found = {
        "path": config.stream.path,
        "unit": source.unit,
        "bipartite": source.ids.bipartite,
        "x_dim": source.x_dim,
        **facts(events),
        "node_features": None if nodes is None else nodes.line(source.ids, _num_nodes(events)),
        "label_classes": list(source.label_classes),
        "family": measure(events, seconds_per_tick(source.unit)).line() if len(events) else None,
    }
    warn(config, events, source.unit, source.ids.bipartite, source.feature_names)
    if as_json:
        sys.stdout.write(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    else:
        print_table((config.stream.path, ""), _rows(found))


def facts(events: EventBatch) -> dict[str, Any]:
    """Return counts and spans of `events`; of none, the counts are 0 and the rest is None."""
    size = len(events)
    ends = torch.cat([events.src, events.dst])
    degree = torch.bincount(ends) if size else ends
    degree = degree[degree > 0]
    pairs = _distinct(events.src * (int(ends.max()) + 1) + events.dst) if size else ends
    return {
        "num_events": size,
        "num_nodes": len(degree),
        "num_sources": len(_distinct(events.src)),
        "num_destinations": len(_distinct(events.dst)),
        "num_pairs": len(pairs),
        "repeat_share": 1 - len(pairs) / size if size else None,
        "self_loops": int((events.src == events.dst).sum()),
        "first_t": int(events.t[0]) if size else None,
        "last_t": int(events.t[-1]) if size else None,
        "num_times": len(_distinct(events.t)),
        "tie_share": 1 - len(_distinct(events.t)) / size if size else None,
        "num_labels": None if events.label is None else len(_distinct(events.label)),
        "degree": _quantiles(degree),
    }


def _num_nodes(events: EventBatch) -> int:
    return 1 + int(torch.maximum(events.src.max(), events.dst.max())) if len(events) else 0


def _distinct(values: Tensor) -> Tensor:
    return torch.unique(values)  # type: ignore[no-any-return]


def _quantiles(values: Tensor) -> dict[str, int] | None:
    if not len(values):
        return None
    ordered = values.sort().values
    return {name: int(ordered[round(q * (len(ordered) - 1))]) for name, q in QUANTILES.items()}


def _rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("events", f"{found['num_events']:,}"),
        ("nodes", f"{found['num_nodes']:,}  ({_sides(found)})"),
        ("distinct pairs", f"{found['num_pairs']:,}"),
    ]
    if found["num_events"]:
        unit, first, last = found["unit"], found["first_t"], found["last_t"]
        show, _ = stream_time(first, last, unit)
        span = "" if unit == "tick" else f"  ({duration((last - first) * seconds_per_tick(unit))})"
        rows += [
            ("time", f"{show(first)} to {show(last)}{span}"),
            ("repeated pairs", f"{found['repeat_share']:.1%} of events"),
            ("tied times", f"{found['tie_share']:.1%} of events"),
            ("kind", found["family"]),
            ("degree", ", ".join(f"{name} {n:,}" for name, n in found["degree"].items())),
        ]
    rows.append(("self-loops", f"{found['self_loops']:,}"))
    rows.append(("edge features", str(found["x_dim"] or "none")))
    if found["node_features"] is not None:
        rows.append(("node features", found["node_features"].removeprefix("node features: ")))
    if found["num_labels"] is not None:
        names = [f"{name} = {i}" for i, name in enumerate(found["label_classes"])]
        shown = f": {listed(names)}" if names else ""
        rows.append(("labels", f"{found['num_labels']:,} distinct{shown}"))
    return rows


def _sides(found: dict[str, Any]) -> str:
    return f"{found['num_sources']:,} sources, {found['num_destinations']:,} destinations"
