"""`tgflow score`: events, nodes, pairs or groups of nodes by their scores."""

from __future__ import annotations

import json as jsonlib
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tgflow.base.iso_time import iso_text
from tgflow.base.units import ticks_in
from tgflow.cli.errors import NO_INPUT, USAGE, CliError, hint
from tgflow.cli.options import Json, OwnModel, given_model
from tgflow.cli.predict import RunPath, To, write_table
from tgflow.report.label_figures import named
from tgflow.report.table_text import print_table
from tgflow.run.config import load_config

if TYPE_CHECKING:
    import pyarrow as pa

    from tgflow.base.choices import Side
    from tgflow.run.saved import Run

EVENT, LABEL = "event", "label_probability"
LATEST = 5
"""Known labels of a node that are shown."""
SIDES: tuple[Side, Side] = ("src", "dst")
STATISTICS = ("mean", "max", "sum")


def score(
    run: RunPath,
    *,
    by: Annotated[
        list[str] | None,
        typer.Option("--by", help="event, src, dst, or both for pairs: repeat. Unset: src"),
    ] = None,
    of: Annotated[
        str | None,
        typer.Option(
            "--of", help="Column of the scores; unset: label_probability, without a task anomaly"
        ),
    ] = None,
    rank_by: Annotated[
        str | None,
        typer.Option(
            "--rank-by",
            help=f"Statistic to sort by: {', '.join(STATISTICS)}; unset: max of label_probability, "
            "else mean",
        ),
    ] = None,
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
    to: To = None,
    model: OwnModel = None,
    json: Json = False,
) -> None:
    """Rank events, or nodes by the scores of their events, such as accounts by fraud.

    Reads the file that the run writes with --scores; events of unknown score do not count. The
    scores were made before the events were learned. Of a run with labels, events have the known
    label and the reason of the score by the parameters of now, and nodes have the number of alerts
    and the history of known labels.

    [bold]Examples[/bold]

      tgflow run pay.csv --task edge --target is_fraud --scores scores.parquet --out runs/pay
      tgflow score runs/pay --last 1d --by event --top 50
      tgflow score runs/pay --last 7d --min-events 3
      tgflow score runs/pay --by dst --of anomaly --rank-by max --groups categories.csv
    """
    sides = [*dict.fromkeys(by or ["src"])]
    if set(sides) - set(SIDES) and sides != [EVENT]:
        text = f"--by: {', '.join(sides)}; choose {EVENT} alone, or src, dst, or both"
        raise CliError(text, USAGE)
    if rank_by not in (*STATISTICS, None):
        raise CliError(f"--rank-by: {rank_by!r}; choose {', '.join(STATISTICS)}", USAGE)
    if groups is not None and (len(sides) > 1 or sides == [EVENT]):
        raise CliError("--groups: groups are of sources or of destinations; give one --by", USAGE)
    column, scores = _scores(run, of)
    if last is not None:
        scores = _last(scores, run, last)
    key, opened = sides, _opened(run, model) if column == LABEL else None
    if groups is not None:
        scores, key = _grouped(scores, sides[0], groups), ["group"]
    if sides == [EVENT]:
        rows, left = _events(scores, column, top, opened), range(1, 3)
    else:
        rank_by = rank_by or ("mean" if opened is None else "max")
        rows, left = _ranked(scores, key, column, rank_by, min_events)[:top], range(len(key))
        if opened is not None and len(key) == 1 and groups is None:
            _add_history(rows, "src" if sides == ["src"] else "dst", scores, opened)
    if to is not None:
        import pyarrow as pa

        table = pa.Table.from_pylist(rows)
        count = write_table(to, table.to_batches(), table.schema)
        Console(stderr=True, highlight=False).print(f"wrote {count:,} rows to {to}")
    if json:
        sys.stdout.write(jsonlib.dumps(rows, ensure_ascii=False, default=str) + "\n")
    elif to is None:
        _print(rows, left, run, f"{column} of {len(scores):,} events", opened)


def _print(
    rows: Sequence[dict[str, Any]], left: range, path: Path, note: str, run: Run | None
) -> None:
    unit = load_config(path / "config.toml").stream.unit

    def cell(name: str, x: Any) -> str:
        if isinstance(x, bool) or x is None:
            return "not known" if name == "label" else "yes" if x else ""
        if name == "t":
            return (iso_text(x, unit) or f"{x:.15g}").replace("T", " ").removesuffix("Z")
        return f"{x:.4g}" if isinstance(x, float) else f"{x:,}" if name == "events" else str(x)

    header = [name for name in (rows[0] if rows else ()) if name != "reason"]
    positive = "" if run is None else named(run.config.label_facts, "")
    titles = {"position": EVENT, LABEL: positive or LABEL}
    cells = [[cell(name, row[name]) for name in header] for row in rows]
    print_table([titles.get(name, name) for name in header], cells, left=left)
    console = Console(highlight=False, markup=False)
    for row in rows:
        if "reason" in row:
            console.print(f"{row['position']:>6}  {row['reason'] or 'no input raises it now'}")
    console.print(note + (positive and f", of {positive}"), style="dim")


def _opened(path: Path, model: str | None) -> Run | None:
    """Return the run at its newest checkpoint, for labels and reasons; None if it has no labels."""
    from tgflow.base.own_code import CodeNotGiven
    from tgflow.run.saved import open_run

    try:
        opened = open_run(path, given_model(model))
    except (FileNotFoundError, CodeNotGiven) as error:
        hint(f"without known labels and reasons: {error}")
        return None
    return None if opened.labels is None else opened


def _events(scores: pa.Table, column: str, top: int, run: Run | None) -> list[dict[str, Any]]:
    """Return the events of the highest scores, with known labels and reasons if `run` has them."""
    import torch

    names = ["position", "src", "dst", "t", "event_id", column, "alert"]
    if run is not None and run.config.positive_label is None:
        names.append("predicted_label")
    found = scores.select([name for name in names if name in scores.column_names])
    order = [(column, "descending"), ("position", "ascending")]
    rows: list[dict[str, Any]] = found.sort_by(order).slice(0, top).to_pylist()
    if run is None:
        return rows
    known = run.known_labels(torch.tensor([row["position"] for row in rows], dtype=torch.int64))
    for row, row["label"] in zip(rows, known, strict=True):
        try:
            row["reason"] = run.explain(event=row["position"], with_effects=False).reason
        except ValueError as error:
            row["reason"] = f"unknown: {error}"
    return rows


def _add_history(rows: list[dict[str, Any]], side: Side, scores: pa.Table, run: Run) -> None:
    """Add the number of alerts among `scores` and the known labels of all events to nodes."""
    has_alerts = "alert" in scores.column_names
    alerts = Counter(scores.filter(scores["alert"])[side].to_pylist() if has_alerts else ())
    for row in rows:
        if has_alerts:
            row["alerts"] = alerts[row[side]]
        labels = [str(label) for label in run.label_history(row[side], side)]
        row["known"] = len(labels)
        if (positive := run.config.positive_label) is not None:
            row["positive"] = labels.count(positive)
        row["latest"] = ", ".join(labels[: -LATEST - 1 : -1])


def _scores(run: Path, of: str | None) -> tuple[str, pa.Table]:
    import pyarrow as pa

    from tgflow.run.scores import score_files
    from tgflow.streams.files.formats import read_table

    if not (run / "config.toml").exists():
        raise CliError(f"{run} is not the directory of a run", NO_INPUT)
    to = load_config(run / "config.toml").scores.to
    if to is None or "://" in to:
        where = "has no file of scores" if to is None else f"sends its scores to {to}"
        raise CliError(f"{run} {where}; start it with --scores scores.parquet", NO_INPUT)
    files = score_files(to)
    if not files:
        raise CliError(
            f"{to}, the scores of {run}, is not there: Parquet is written at the end "
            "of a run, and the path is from the folder where it was started",
            NO_INPUT,
        )
    tables: Any = [read_table(path, SIDES)[1] for path in files.values()]
    table: Any = pa.concat_tables(tables, promote_options="permissive")
    if of is None:
        of = LABEL if LABEL in table.column_names else "anomaly"
    texts = (*SIDES, "predicted_label", "event_id", "alert")
    numbers = [name for name in table.column_names if name not in texts]
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
    return scores.filter(pc.greater(times, pc.subtract(pc.max(times), length)))


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
