"""`tgflow score`: nodes, pairs or groups of nodes by the scores of their events."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tgflow.base.units import ticks_in
from tgflow.cli.errors import NO_INPUT, USAGE, CliError
from tgflow.cli.options import Json
from tgflow.cli.predict import RunPath
from tgflow.report.table_text import print_table
from tgflow.run.config import load_config

if TYPE_CHECKING:
    import pyarrow as pa

SIDES = ("src", "dst")
STATISTICS = ("mean", "max", "sum")


def score(
    run: RunPath,
    *,
    by: Annotated[
        list[str] | None,
        typer.Option("--by", help="src, dst, or both for pairs: repeat. Unset: src"),
    ] = None,
    of: Annotated[
        str | None,
        typer.Option(
            "--of", help="Column of the scores; unset: label_probability, without a task anomaly"
        ),
    ] = None,
    rank_by: Annotated[
        str, typer.Option("--rank-by", help=f"Statistic to sort by: {', '.join(STATISTICS)}")
    ] = "mean",
    groups: Annotated[
        Path | None,
        typer.Option("--groups", help="File of two columns, a node and its group: rank groups"),
    ] = None,
    last: Annotated[
        str | None, typer.Option("--last", help="Only events of the last 7d, 12h, ... of the run")
    ] = None,
    min_events: Annotated[
        int, typer.Option("--min-events", min=1, help="Leave out those with fewer events")
    ] = 1,
    top: Annotated[int, typer.Option("--top", "-k", min=1, help="Rows shown")] = 20,
    json: Json = False,
) -> None:
    """Rank nodes by the scores of their events, such as accounts by their probability of fraud.

    Reads the file that the run writes with --scores; events of unknown score do not count. The
    scores were made before the events were learned.

    [bold]Examples[/bold]

      tgflow run pay.csv --task edge --target is_fraud --scores scores.parquet --out runs/pay
      tgflow score runs/pay --last 7d --min-events 3
      tgflow score runs/pay --by dst --of anomaly --rank-by max --groups categories.csv
    """
    sides = [*dict.fromkeys(by or ["src"])]
    if set(sides) - set(SIDES):
        raise CliError(f"--by: {', '.join(sides)}; choose src, dst, or both", USAGE)
    if rank_by not in STATISTICS:
        raise CliError(f"--rank-by: {rank_by!r}; choose {', '.join(STATISTICS)}", USAGE)
    if groups is not None and len(sides) > 1:
        raise CliError("--groups: groups are of sources or of destinations; give one --by", USAGE)
    column, scores = _scores(run, of)
    if last is not None:
        scores = _last(scores, run, last)
    key = sides
    if groups is not None:
        scores, key = _grouped(scores, sides[0], groups), ["group"]
    rows = _ranked(scores, key, column, rank_by, min_events)
    if json:
        sys.stdout.write(jsonlib.dumps(rows[:top], ensure_ascii=False, default=str) + "\n")
        return
    print_table(
        (*key, "events", *STATISTICS),
        [
            (
                *(str(row[name]) for name in key),
                f"{row['events']:,}",
                *(f"{row[name]:.4g}" for name in STATISTICS),
            )
            for row in rows[:top]
        ],
        left=range(len(key)),
    )
    Console(highlight=False).print(f"{column} of {len(scores):,} events", style="dim")


def _scores(run: Path, of: str | None) -> tuple[str, pa.Table]:
    """Return the column of scores, and the table of events whose score is known."""
    from tgflow.streams.files.formats import read_table

    if not (run / "config.toml").exists():
        raise CliError(f"{run} is not the directory of a run", NO_INPUT)
    to = load_config(run / "config.toml").scores.to
    if to is None or "://" in to:
        where = "has no file of scores" if to is None else f"sends its scores to {to}"
        raise CliError(f"{run} {where}; start it with --scores scores.parquet", NO_INPUT)
    if not Path(to).exists():
        raise CliError(
            f"{to}, the scores of {run}, is not there: Parquet is written at the end "
            "of a run, and the path is from the folder where it was started",
            NO_INPUT,
        )
    table: Any = read_table(Path(to), SIDES)[1]
    if of is None:
        of = "label_probability" if "label_probability" in table.column_names else "anomaly"
    numbers = [name for name in table.column_names if name not in (*SIDES, "predicted_label")]
    if of not in numbers:
        raise CliError(
            f"--of: {to} has no column {of!r} of numbers, but {', '.join(numbers)}", USAGE
        )
    return of, table.filter(table[of].is_valid())


def _last(scores: pa.Table, run: Path, span: str) -> pa.Table:
    import pyarrow.compute as pc

    c = load_config(run / "config.toml").stream
    try:
        length = float(ticks_in(span, c.unit))
    except ValueError as error:
        raise CliError(f"--last: {error}", USAGE) from None
    times = scores["t"]
    return (
        scores.filter(pc.greater(times, pc.subtract(pc.max(times), length)))
        if len(scores)
        else scores
    )


def _grouped(scores: pa.Table, side: str, groups: Path) -> pa.Table:
    """Return the scores of nodes with a group, which is in a column of that name."""
    import pyarrow as pa

    from tgflow.streams.files.formats import read_table

    try:
        found: Any = read_table(groups, read_table(groups)[1].column_names)[1]  # 007 is not 7
    except FileNotFoundError as error:
        raise CliError(f"--groups: {error}", NO_INPUT) from None
    if found.num_columns != 2:
        text = f"--groups: {groups} has {found.num_columns} columns, not a node and its group"
        raise CliError(text, USAGE)
    nodes, names = (column.cast(pa.string()) for column in found.columns)
    table = pa.table({side: nodes, "group": names})
    own = scores.set_column(scores.column_names.index(side), side, scores[side].cast(pa.string()))
    return own.join(table, side, join_type="inner")


def _ranked(
    scores: pa.Table, key: list[str], column: str, rank_by: str, min_events: int
) -> list[dict[str, Any]]:
    """Return a row for each key: the key, `events` and `STATISTICS`; the largest first."""
    chosen = [(column, name) for name in ("count", *STATISTICS)]
    found: list[dict[str, Any]] = scores.group_by(key).aggregate(chosen).to_pylist()
    rows = [
        {
            **{name: row[name] for name in key},
            "events": row[f"{column}_count"],
            **{name: row[f"{column}_{name}"] for name in STATISTICS},
        }
        for row in found
        if row[f"{column}_count"] >= min_events
    ]
    return sorted(rows, key=lambda row: (-row[rank_by], *(str(row[name]) for name in key)))
