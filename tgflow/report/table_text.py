"""Terminal output of commands: tables, a run's summary, and row counts.

Contents of a stream are escaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tgflow.base.units import duration
from tgflow.report.formatting import num_bytes
from tgflow.report.label_figures import label_table, late_text, named

TITLES = {"edge_x": "edge features", "node_x": "node features"}
_WHERE = {"disk": "on disk"}
PARTS = ("accepted", "late", "malformed", "duplicate", "buffered")
FILES = {
    "report.html": "plots; open it in a browser",
    "metrics.json": "all figures",
    "checkpoint": "model, memory, events",
    "config.toml": "these settings, for --config",
}
RUN_FILES = FILES | {"checkpoints": "model, memory, events; --resume starts from there"}
del RUN_FILES["checkpoint"]


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    *,
    left: Container[int] = (0,),
    console: Console | None = None,
) -> None:
    """Print a small table."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i in left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    (console or Console()).print(table)


def print_summary(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    note: str,
    path: Path,
    files: Mapping[str, str] = FILES,
) -> None:
    """Print a run's figures, a note about them, and where its files are."""
    print_table(header, rows)
    console = Console(soft_wrap=True, highlight=False)
    console.print(note, style="dim")
    for name, what in files.items():
        console.print(f"  {path / name}  [dim]{what}[/dim]")


def print_labels(metrics: Mapping[str, Any]) -> None:
    """Print label metrics, if there are any, beside heuristic baselines."""
    if (found := label_table(metrics, metrics["model"])) is not None:
        print_table(*found)
        for text in (named(metrics, "labels are those of "), late_text(metrics)):
            if text:
                Console(soft_wrap=True, highlight=False).print(text, style="dim", markup=False)


def print_feature_tables(tables: Mapping[str, Any]) -> None:
    """Print where features are stored, and their hit rate in caches."""
    console = Console(soft_wrap=True, highlight=False)
    for name, figures in tables.items():
        console.print(f"{TITLES[name]}: {describe_table(figures)}", style="dim")


def describe_table(figures: Mapping[str, Any]) -> str:
    """Return a description of `tgflow.run.features.table_figures` of a table."""
    size = num_bytes(figures["rows"] * figures["row_bytes"])
    placement = figures.get("placement", "host")
    where = _WHERE.get(placement, f"in {placement} memory")
    text = f"{figures['rows']:,} rows ({size}) {where}"
    if (cache := figures.get("cache")) is not None:
        rate = cache["hit_rate"]
        text += ", behind a cache" if rate is None else f", {rate:.1%} read from a cache"
        text += f" of {cache['capacity']:,} ({cache['policy']}, {num_bytes(cache['memory_bytes'])})"
    return text


def print_scores(scores: Mapping[str, Any]) -> None:
    """Print where the scores of events are."""
    text = f"scores of {scores['num_rows']:,} events are in {scores['to']}"
    Console(soft_wrap=True, highlight=False).print(Text(text, "dim"))


def row_sums(stream: Mapping[str, Any]) -> str:
    """Return the row counts by outcome in one line."""
    counts = stream["counts"]
    sums = ", ".join(f"{counts[name]:,} {name}" for name in PARTS if counts[name])
    skipped = "".join(
        f"; {num:,} {name.replace('_', ' ')}{'s' if num > 1 else ''} skipped"
        for name, num in other_counts(stream).items()
    )
    return f"{counts['read']:,} rows read: {sums or 'none'}{skipped}"


def label_sums(labels: Mapping[str, Any]) -> str:
    """Return in one line what became of labels that came after their events, and how late."""
    names = ("added", "corrected", "repeated", "waiting", "refused", "expired")
    sums = ", ".join(f"{labels[name]:,} {name}" for name in names if labels[name])
    late = labels.get("delay_seconds") or {}
    shares = [f"{share} came within {duration(late[key])}" for share, key in _LATE if key in late]
    how = f"; {', '.join(shares)} of their events" if shares else ""
    return f"labels that came later: {sums or 'none'}{how}"


_LATE = (("half", "p50"), ("90 %", "p90"))


def other_counts(stream: Mapping[str, Any]) -> Counter[str]:
    """Return the counts of items that are not rows, such as blank lines, by name."""
    found: Counter[str] = Counter()
    for counts in stream["counts"]["partitions"].values():
        found.update(counts["other"])
    return found
