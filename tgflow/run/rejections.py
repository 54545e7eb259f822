"""Rejected rows of a stream and the reasons, as text; contents are escaped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tgflow.base.text import printable
from tgflow.report.table_text import label_sums, other_counts, print_table, row_sums
from tgflow.run.config import in_flags

HEADER = ("why", "partition", "rows", "first", "for example")


def rejections(stream: Mapping[str, Any]) -> list[tuple[str, str, str, str, str, str]]:
    """Return a line for each code and partition, those with most rows first."""
    labels = stream.get("labels", {}).get("partitions", {})
    of_labels = {f"labels {partition}": counts for partition, counts in labels.items()}
    lines = [
        (seen["count"], code, partition, seen)
        for partition, counts in (stream["counts"]["partitions"] | of_labels).items()
        for code, seen in counts["refused"].items()
    ]
    return [
        (
            printable(code),
            printable(str(partition)),
            f"{count:,}",
            _location(seen["first"]),
            _location(seen["last"]),
            printable(in_flags(str(next(iter(seen["examples"]), "")))),
        )
        for count, code, partition, seen in sorted(lines, key=lambda line: -line[0])
    ]


def _location(place: Mapping[str, Any]) -> str:
    return printable(", ".join(f"{name} {value}" for name, value in place.items()))


def print_stream(stream: Mapping[str, Any], dead_letters: Path) -> None:
    """Print which rows were rejected, if any, and where they are kept."""
    lines = [
        (why, part, rows, first, last) for why, part, rows, first, _, last in rejections(stream)
    ]
    if lines:
        print_table(HEADER, lines)
    if lines or stream["counts"]["duplicate"] or other_counts(stream):
        kept = f"; rejected rows are in {dead_letters}" if lines else ""
        Console(soft_wrap=True, highlight=False).print(Text(row_sums(stream) + kept, "dim"))
    if labels := stream.get("labels"):
        Console(soft_wrap=True, highlight=False).print(Text(label_sums(labels), "dim"))
