"""What `tgflow predict` and `tgflow embed` do: a run is opened, asked, and answers in rows."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
import torch
from rich.console import Console

from tgflow.cli.errors import USAGE, CliError
from tgflow.iso import EXAMPLE, iso_seconds
from tgflow.report.formatting import score
from tgflow.report.table_text import print_table
from tgflow.runtime.saved_run import Run, open_run
from tgflow.serve.scored_pairs import ScoredPairs
from tgflow.streams.files.formats import format_of
from tgflow.streams.write import encode_rows, write_rows
from tgflow.units import exact_number

EMBEDDED_AT_ONCE = 4096
"""Nodes of a batch of rows."""
SIDES = ("src", "dst")


def propose(
    path: Path,
    src: Sequence[str],
    dst: Sequence[str] | None,
    top: int,
    exclude_known: bool,
    at: str | None,
    to: Path | None,
    as_json: bool,
) -> None:
    """Say whom sources will meet next."""
    run = open_run(path)
    candidates = _ids(run, dst) if dst else None
    found = run.top_k(_ids(run, src), top, candidates, exclude_known, _time(at))
    _answer(found, to, as_json)


def score_pairs(path: Path, pairs: Path, at: str | None, to: Path | None, as_json: bool) -> None:
    """Say how likely the pairs of a file are."""
    run = open_run(path)
    _answer(run.score(_read(pairs, run), at=_time(at)), to, as_json)


def write_embeddings(
    path: Path, ids: Sequence[str] | None, at: str | None, to: Path | None
) -> None:
    """Write the embeddings of nodes, or of all."""
    run = open_run(path)
    batches = _embedded(run, ids, _time(at))
    first = next(batches)
    batches = itertools.chain([first], batches)
    if to is None:
        for number, batch in enumerate(batches):
            sys.stdout.write(encode_rows(batch, "csv", header=not number).decode())
        return
    count = _write(to, batches, first.schema)
    Console(stderr=True, highlight=False).print(f"wrote {count:,} embeddings to {to}")


def _embedded(run: Run, ids: Sequence[str] | None, at: str | None) -> Iterator[pa.RecordBatch]:
    """Yield rows of nodes, at least one batch; of all there are without `ids`."""
    if ids:
        names = _ids(run, ids)
        yield _rows_of({"id": pa.array(names)}, run.embed(names, at))
        return
    sides = run.ids.state_dict().get("sides")
    for nodes in torch.split(torch.arange(run.graph.num_nodes), EMBEDDED_AT_ONCE):
        columns = {"id": pa.array(run.ids.decode(nodes))}
        if sides is not None:
            columns["side"] = pa.array([SIDES[side] for side in sides[nodes].tolist()])
        yield _rows_of(columns, run.embed_nodes(run.nodes_of(nodes, at)))


def _rows_of(columns: dict[str, pa.Array], z: torch.Tensor) -> pa.RecordBatch:
    columns |= {f"e{i}": pa.array(z[:, i].numpy()) for i in range(z.shape[1])}
    return pa.RecordBatch.from_pydict(columns)


def _ids(run: Run, texts: Sequence[str]) -> list[Any]:
    """Return ids as the stream has them: numbers, if those of the run are."""
    if not len(run.ids) or isinstance(run.ids.decode(torch.zeros(1).long())[0], str):
        return [*texts]
    try:
        return [int(text) for text in texts]
    except ValueError as error:
        raise CliError(f"ids of this run are whole numbers: {error}", USAGE) from None


def _time(text: str | None) -> str | None:
    if text is None or iso_seconds(text) is not None or exact_number(text) is not None:
        return text
    way_out = f"give a number, or a time such as {EXAMPLE}"
    raise CliError(f"--at: {text!r} is no time; {way_out}", USAGE)


def _read(path: Path, run: Run) -> pa.Table:
    """Return the columns of a file of pairs; ids of text files are of the run's kind."""
    c, kind = run.config.stream, format_of(path)
    text = isinstance(_ids(run, ["0"])[0], str)
    ids = dict.fromkeys((c.src, c.dst), pa.string() if text else pa.int64())
    if kind in ("csv", "tsv"):
        parse = pa.csv.ParseOptions(delimiter="\t" if kind == "tsv" else ",")
        convert = pa.csv.ConvertOptions(column_types=ids, strings_can_be_null=False)
        return pa.csv.read_csv(path, parse_options=parse, convert_options=convert)
    if kind == "jsonl":
        return pa.json.read_json(path)
    if kind == "parquet":
        return pa.parquet.read_table(path)
    if kind == "arrow":
        with pa.memory_map(str(path)) as file:
            return pa.ipc.open_file(file).read_all()
    raise CliError(
        f"--pairs: {str(path)!r} has no known ending; it is to be .csv, .tsv, .jsonl, .parquet or "
        ".arrow",
        USAGE,
    )


def _answer(found: ScoredPairs, to: Path | None, as_json: bool) -> None:
    """Write answers to a file, or print them."""
    table = found.to_arrow()
    if to is not None:
        count = _write(to, table.to_batches(), table.schema)
        Console(stderr=True, highlight=False).print(f"wrote {count:,} scores to {to}")
    if as_json:
        sys.stdout.write(json.dumps(table.to_pylist(), indent=2, ensure_ascii=False) + "\n")
    elif to is None:
        _print(table)


def _print(table: pa.Table) -> None:
    rows = [
        [
            score(cell) if isinstance(cell, float) else "" if cell is None else str(cell)
            for cell in row
        ]
        for row in zip(*(column.to_pylist() for column in table.columns), strict=True)
    ]
    print_table(table.column_names, rows, left=(0, 1))


def _write(path: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> int:
    try:
        return write_rows(path, batches, schema)
    except ValueError as error:
        raise CliError(f"--to: {error}", USAGE) from None
