"""`tgflow predict`, `explain` and `embed`: scores, their reasons, and embeddings of a run."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tgflow.base.iso_time import EXAMPLE, iso_seconds
from tgflow.base.units import exact_number
from tgflow.cli.errors import DATA, USAGE, CliError
from tgflow.cli.options import Json, OwnModel, given_model
from tgflow.report.formatting import score
from tgflow.report.table_text import print_table
from tgflow.run.config import in_flags

if TYPE_CHECKING:
    import pyarrow as pa

    from tgflow.run.saved import Run

RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", help="Run directory of tgflow run or train")
]
To = Annotated[
    Path | None,
    typer.Option(
        "--to", help="File to write, by its ending: .parquet, .csv, .tsv, .jsonl or .arrow"
    ),
]

At = Annotated[
    str | None,
    typer.Option(
        "--at", help="Query time in the stream's unit, or as 2024-05-01T12:00Z; unset: its end"
    ),
]


RelationText = Annotated[
    str | None, typer.Option("--relation", help="Relation, for models that depend on relations")
]


def predict(
    run: RunPath,
    *,
    src: Annotated[
        list[str] | None, typer.Option("--src", help="Source to rank destinations for; repeat")
    ] = None,
    dst: Annotated[
        list[str] | None,
        typer.Option("--dst", help="Candidate destination, unset: all; may be repeated"),
    ] = None,
    sources: Annotated[
        Path | None, typer.Option("--sources", help="File with the id of a source in each line")
    ] = None,
    top: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Destinations per source")] = 10,
    exclude_known: Annotated[
        bool, typer.Option("--exclude-known", help="Exclude past neighbors of a source")
    ] = False,
    pairs: Annotated[
        Path | None,
        typer.Option("--pairs", help="File of pairs to score: CSV, Parquet, Arrow or JSON lines"),
    ] = None,
    at: At = None,
    relation: RelationText = None,
    to: To = None,
    model: OwnModel = None,
    json: Json = False,
) -> None:
    """Predict with a run: rank the next destinations of a source, or score pairs.

    Ids are those of the stream. The run is not modified and may continue meanwhile; answers use its
    latest checkpoint.

    [bold]Examples[/bold]

      tgflow predict runs/pay --src acc_9 --top-k 10
      tgflow predict runs/pay --sources users.txt --top-k 10 --to best.parquet
      tgflow predict runs/pay --src acc_9 --dst shop_1 --dst shop_2 --json
      tgflow predict runs/pay --src acc_9 --relation refund
      tgflow predict runs/pay --pairs pairs.csv --to scores.parquet
    """
    src = [*(src or []), *(sources.read_text(encoding="utf-8").split("\n") if sources else [])]
    src = [each for line in src if (each := line.removesuffix("\r"))]
    if (pairs is None) == (not src):
        raise CliError("pass either sources, by --src or --sources, or --pairs", USAGE)
    if pairs is not None and (dst or exclude_known):
        raise CliError("--dst and --exclude-known require --src; --pairs contains both ends", USAGE)

    opened, time = _opened(run, model), _checked_time(at)
    related = _relation(opened, relation)
    if pairs is not None:
        found = opened.score(_read_pairs(pairs, opened), at=time, relation=related)
    else:
        candidates = _ids(opened, dst) if dst else None
        found = opened.top_k(_ids(opened, src), top, candidates, exclude_known, time, related)
    table, ranked = found.to_arrow(), zip(found.src, found.ranked_by or (), strict=False)
    if num := len({source for source, by in ranked if by == "popularity"}):
        text = "1 source was" if num == 1 else f"{num:,} sources were"
        notice = f"{text} never seen: ranked by popularity"
        Console(stderr=True, highlight=False).print(notice)
    if to is not None:
        count = write_table(to, table.to_batches(), table.schema)
        Console(stderr=True, highlight=False).print(f"wrote {count:,} scores to {to}")
    if json:
        sys.stdout.write(jsonlib.dumps(table.to_pylist(), indent=2, ensure_ascii=False) + "\n")
    elif to is None:
        names = [n for n in table.column_names if table[n].null_count < len(table)]
        table = table.select([n for n in names if n != "ranked_by" or num])
        columns = [[_shown(cell) for cell in each.to_pylist()] for each in table.columns]
        print_table(table.column_names, [*zip(*columns, strict=True)], left=(0, 1))


def _shown(cell: Any) -> str:
    return score(cell) if isinstance(cell, float) else "" if cell is None else str(cell)


SHOWN = 10
"""Events shown on the terminal."""


def explain(
    run: RunPath,
    *,
    src: Annotated[str, typer.Option("--src", help="Source of the pair")],
    dst: Annotated[str, typer.Option("--dst", help="Destination of the pair")],
    at: At = None,
    relation: RelationText = None,
    of: Annotated[
        str | None,
        typer.Option("--of", help="Label to explain, by its column; unset or link: the score"),
    ] = None,
    label: Annotated[
        str | None, typer.Option("--class", help="One of several labels; unset: the predicted one")
    ] = None,
    x: Annotated[
        str | None, typer.Option("--x", help="Features of the event, for --of: JSON by column")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File for a page with the events around the pair: .html"),
    ] = None,
    model: OwnModel = None,
    json: Json = False,
) -> None:
    """Explain a score: what each group of inputs contributes, and the past events behind it.

    Contributions and the baseline, a pair without history, add up to the logit, with --of to that
    of the label. The effect of an event is the change of the logit when it is removed. With --at
    nothing later is read, but the model's parameters are those of the latest checkpoint. The run is
    not modified.

    [bold]Examples[/bold]

      tgflow explain runs/pay --src acc_9 --dst shop_1
      tgflow explain runs/pay --src acc_9 --dst shop_1 --at 2024-05-01T12:00Z --out explain.html
      tgflow explain runs/pay --src acc_9 --dst shop_1 --json
      tgflow explain runs/pay --src acc_9 --dst shop_1 --of is_fraud --x '{"amount": 500}'
    """
    if out is not None and out.suffix != ".html":
        raise CliError(f"--out: {out} must end in .html", USAGE)
    from tgflow.run.explanation import explanation_page, halving, label_text, new_text, signed
    from tgflow.serve.explain import age_text

    opened, time = _opened(run, model), _checked_time(at)
    source, destination = _ids(opened, [src, dst])
    asked = source, destination, time, _relation(opened, relation), _features(x)
    found = opened.explain(*asked, of=of, label=_label(opened, label))
    unit = opened.config.stream.unit
    if out is not None:
        out.write_text(explanation_page(found, str(run), unit), encoding="utf-8")
        Console(stderr=True, highlight=False).print(f"wrote {out}")
    if json:
        sys.stdout.write(jsonlib.dumps(found.to_dict(), indent=2, ensure_ascii=False) + "\n")
        return
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if found.new is not None:
        console.print(new_text(found))
    rows = [(group.name, signed(group.logit), group.text) for group in found.groups]
    rows = [("baseline", signed(found.baseline), "a pair without history"), *rows]
    rows.append(("logit", signed(found.logit), f"probability {score(found.probability)}"))
    print_table(("group", "logit", "" if found.history else "past events"), rows, left=(0, 2))
    for record in found.history:
        console.print(label_text(found, record))
    if not found.events:
        console.print("the pair has no past events")
        return
    events = [
        (str(e.src), str(e.dst), str(e.t), age_text(found.t - e.t, unit), signed(e.drop))
        for e in found.events[:SHOWN]
    ]
    print_table(("src", "dst", "t", "before", "drop"), events, left=(0, 1))
    if len(found.events) > SHOWN:
        console.print(f"{len(found.events) - SHOWN} more events with --json or --out")
    console.print(halving(found))


def embed(
    run: RunPath,
    *,
    to: To = None,
    ids: Annotated[
        list[str] | None, typer.Option("--id", help="Node to embed, unset: all; may be repeated")
    ] = None,
    at: At = None,
    model: OwnModel = None,
) -> None:
    """Write the embeddings of a run's nodes: one row per node, with its id and e0, e1, ...

    The run is not modified and may continue meanwhile. Without --to, rows go to stdout as CSV.

    [bold]Examples[/bold]

      tgflow embed runs/pay --to embeddings.parquet
      tgflow embed runs/pay --id acc_1 --id acc_2
    """
    from tgflow.streams.write import encode_rows

    opened, when = _opened(run, model), _checked_time(at)
    batches = opened.embeddings(_ids(opened, ids) if ids else None, when)
    if to is None:
        for number, batch in enumerate(batches):
            sys.stdout.write(encode_rows(batch, "csv", header=not number).decode())
        return
    count = write_table(to, batches, batches.schema)
    Console(stderr=True, highlight=False).print(f"wrote {count:,} embeddings to {to}")


def _opened(path: Path, model: str | None) -> Run:
    """Return a run; files written later are private if its own are."""
    from tgflow.run.records import keep_private
    from tgflow.run.saved import open_run

    run = open_run(path, given_model(model))
    keep_private(run.config.run)
    return run


def _ids(run: Run, texts: Sequence[str]) -> list[Any]:
    """Return ids in the stream's type: numbers, if those of the run are."""
    import pyarrow as pa

    try:
        found: list[Any] = run.ids.read(pa.array(texts)).to_pylist()
    except ValueError as error:
        raise CliError(in_flags(str(error).partition(": ")[2]), USAGE) from None
    return found


def _features(text: str | None) -> dict[str, Any] | None:
    """Return the features in JSON."""
    if text is None:
        return None
    try:
        found = jsonlib.loads(text)
    except ValueError as error:
        raise CliError(f"--x: {text!r} is not JSON: {error}", USAGE) from None
    if not isinstance(found, dict):
        raise CliError(f'--x: {text!r} is no JSON object, such as {{"amount": 500}}', USAGE)
    return found


def _label(run: Run, text: str | None) -> str | int | None:
    """Return a label in the stream's type: a number, if those of the run have no texts."""
    if text is None or run.label_names:
        return next((name for name in run.label_names if str(name) == text), text)
    return _number(text, "--class: labels")


def _relation(run: Run, text: str | None) -> str | int | None:
    """Return a relation in the stream's type: a number, if those of the run are."""
    return text if text is None or run.relations() else _number(text, "--relation: relations")


def _number(text: str, what: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise CliError(f"{what} of this run are whole numbers, got {text!r}", USAGE) from None


def _checked_time(text: str | None) -> str | None:
    if text is None or iso_seconds(text) is not None or exact_number(text) is not None:
        return text
    way_out = f"give a number, or a time such as {EXAMPLE}"
    raise CliError(f"--at: {text!r} is not a time; {way_out}", USAGE)


def _read_pairs(path: Path, run: Run) -> pa.Table:
    """Return the columns of a file of pairs, with ids and relations of the run's types."""
    from tgflow.streams.files.formats import read_table

    c, texts = run.config.stream, []
    if c.relation is not None and run.relations():
        texts.append(c.relation)
    if c.time_format is not None:
        texts.append(c.t)
    table = read_table(path, [c.src, c.dst, *texts, *(c.categorical or ())], c)[1]
    given = {"sep": c.sep, "header": c.header, "columns": c.columns, "comment": c.comment}
    as_read = ", ".join(f"{name}={x!r}" for name, x in given.items() if x is not None)
    if as_read and not {c.src, c.dst} <= {*table.column_names}:
        found = ", ".join(table.column_names[:8])
        text = f"--pairs: {path} is read with the layout of the run, {in_flags(as_read)}, and has"
        raise CliError(f"{text} the columns {found}, without {c.src} or {c.dst}", DATA)
    for name in (side for side in (c.src, c.dst) if side in table.column_names):
        try:
            ids = run.ids.read(table[name])
        except ValueError as error:
            text = f"--pairs: {path}, column {name}, {in_flags(str(error))}"
            raise CliError(text, DATA) from None
        table = table.set_column(table.column_names.index(name), name, ids)
    return table


def write_table(path: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> int:
    """Write rows to a file by its ending; return their number."""
    from tgflow.streams.write import write_rows

    try:
        return write_rows(path, batches, schema)
    except ValueError as error:
        raise CliError(f"--to: {error}", USAGE) from None
