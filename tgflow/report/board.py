"""The row of a training for the board of its data set, beside the rows published there."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tgflow.report.page import Card

AS_OF = "January 2026"
"""When the rows in boards.csv, those of TGB's boards, were published."""
MIN_RUNS = 5
"""Runs that TGB asks for."""


class BoardRow(NamedTuple):
    """A row of a board."""

    method: str
    test: str
    val: str
    more: str
    """Parameters, minutes, runs and machine; "" of published rows."""

    def __str__(self) -> str:
        return f"{self.method}, test {self.test}, validation {self.val}, {self.more}"


def board_row(metrics: Mapping[str, Any]) -> tuple[str, BoardRow] | None:
    """Return the metric and the row of a training; None unless all of a data set was trained on
    under the protocol of its board.
    """
    about, is_nodes = metrics.get("data_set", {}), metrics["protocol"] == "tgbn/1"
    own = metrics["protocol"], str(metrics["num_events"])
    if own != (about.get("protocol"), about.get("num_events")):
        return None
    metric, key = ("NDCG@10", "property.ndcg") if is_nodes else ("MRR", "mrr")
    if f"test.{key}" not in metrics:
        return None
    machine = metrics["machine"]
    test, val = (
        f"{metrics[part]:.4f}"
        + (f" ± {metrics[f'{part}_std']:.4f}" if f"{part}_std" in metrics else "")
        for part in (f"test.{key}", f"val.{key}")
    )
    parameters = metrics["num_parameters"] + int(metrics.get("test.property.num_parameters", 0))
    runs = metrics["num_seeds"]
    more = [
        f"{parameters:,} parameters",
        f"{metrics['wall_seconds'] / 60:.3g} minutes a run",
        f"{runs} run{'s' * (runs > 1)}" + f" of {MIN_RUNS}" * (runs < MIN_RUNS),
        machine.get("gpu")
        or f"{machine['system']}, {metrics['threads']} of {machine['cores']} cores",
    ]
    return metric, BoardRow(f"{metrics['model']} (tgflow)", test, val, ", ".join(more))


def published_rows(board: str) -> list[BoardRow]:
    """Return the published rows of a data set such as "tgbl-wiki-v2", the best first."""
    path = Path(__file__).with_name("boards.csv")
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["dataset"] == board]
    return [BoardRow(row["method"], row["test"], row["val"] or "–", "") for row in rows]


def board_card(metrics: Mapping[str, Any]) -> Card | None:
    """Return the section of a page with the row of a training in its place on the board."""
    if (found := board_row(metrics)) is None:
        return None
    (metric, own), about = found, metrics["data_set"]
    rows = published_rows(about["board"])
    place = sum(_value(row) > _value(own) for row in rows)
    cells = [(row.method, row.test, row.val, row.more) for row in rows]
    cells.insert(place, (f"{own.method}, this training", *own[1:]))
    notes = [f"Protocol {about['protocol']}. Licence of the data: {about['licence']}."]
    notes += [f"Published rows as of {AS_OF}." if rows else "No published rows are at hand."]
    head = ("method", f"test {metric}", f"validation {metric}", "cost")
    return Card(f"The board of {about['board']}", cells, head, notes)


def _value(row: BoardRow) -> float:
    return float(row.test.partition("±")[0])
