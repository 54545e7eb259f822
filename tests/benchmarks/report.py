"""Writes the tables of BENCHMARKS.md and of the README from what was measured; nobody types them.

    python -m benchmarks.report sample store --data wikipedia.csv.gz   measure, keep the rows,
                                                                       write the tables
    python -m benchmarks.report                                        write the tables only

Pictures of guides (`benchmarks.pictures`) are written with them.

A table stands between `<!-- rows: NAME -->` and `<!-- end -->`, where NAME is a file of
benchmarks/results; `headlines` is the page's first table, `libraries` and `models` are those of the
README, and `gpu` that of the goals on a GPU, where `make gpu` keeps its rows beside these.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "5000")  # before torch's OpenMP reads it, as tgflow does

import importlib
import math
import re
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks import accuracy, gpu_goals
from benchmarks.__main__ import DEVELOPERS
from benchmarks.crossed import CROSSINGS, crossed_table
from benchmarks.pictures import draw_pictures, with_pictures
from benchmarks.results import FOLDER, Result, load, record
from tgflow.bench.grid import Grid, grids
from tgflow.bench.options import Options
from tgflow.bench.row import Params, Row
from tgflow.report.formatting import compact

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "examples" / "guides"
PAGES = ("BENCHMARKS.md", "README.md", "examples/guides/how-fast.md")
NOT_MEASURED = "Not measured yet."
"""In place of a table whose results are not there."""
_MARKED = re.compile(r"(<!-- rows: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Headline:
    """A figure of the first tables: one row, or one of each library."""

    what: str
    result: str
    """The file of results."""
    name: str
    """The rows' name,"""
    params: Params = field(default_factory=dict)
    """and what their parameters must have."""
    on_gpu: str | None = None
    """The name of a GPU's rows, in the file of its results; None where there are none."""
    gpu_params: Params | None = None
    """What their parameters must have; None: the same."""


_BATCH: Params = {"batch": 200}
_TGN = "prepare, TGN, 1 hop of 10"
_WIDE: Params = {"dim": 172, "beside": "index_select"}
_10M: Params = {"stream": "power law", "entries": 10_000_000}
_OURS: Params = {"library": "tgflow"}


def _alike(what: str, result: str, name: str) -> Headline:
    """Return the headline of a figure at 10 M entries that a GPU has under the same name."""
    return Headline(what, result, name, _10M, on_gpu=name)


HEADLINES: Sequence[Headline] = (
    _alike("10 recent neighbors, a core, 10 M entries", "sample", "recent, cold"),
    _alike("10 uniform neighbors, a core, 10 M entries", "sample", "uniform, cold"),
    Headline("2 hops of 10, 600 roots", "sample", "two hops, beside the peers", _OURS),
    _alike("insert 1,000, then sample 3,000", "sample", "update, then sample"),
    _alike("inserting in bulk, a core", "store", "insert, bulk"),
    _alike("inserting batches of 1,000, a core", "store", "insert, micro-batches"),
    _alike("memory of the store", "store", "memory"),
    Headline("preparing TGN's batches, a core", "prepare", _TGN, {"x_dim": 0}),
    Headline("training TGN", "train", "TGN training", _OURS, "TGN training on the device", _BATCH),
    Headline("training TGN, of the faster peer", "train", "TGN training, times the faster peer"),
    Headline(
        "training TGAT", "train", "TGAT training", _OURS, "TGAT training on the device", _BATCH
    ),
    Headline("CSV into the log", "stream", "files, to the log", {"file": "clean.csv"}),
    Headline("Parquet into the log", "stream", "files, to the log", {"file": "clean.parquet"}),
    Headline("gathering 172 floats a row", "table", "gather rows", _WIDE),
)
"""Of the page's first table."""
LIBRARIES = {
    "tgflow": "tgflow",
    "PyTorch Geometric": "torch_geometric",
    "TGM": "tgm-lib",
    "TGLite": "tglite",
}
"""Of the README's table: titles, and the names that rows have for them."""
BESIDE: Sequence[Headline] = (
    Headline("training TGN, events/s", "train", "TGN training"),
    Headline("training TGAT, 2 hops of 10, events/s", "train", "TGAT training"),
    Headline("sampling 2 hops of 10 for 600 roots, us", "sample", "two hops, beside the peers"),
    Headline("inserting batches of 200, events/s", "store", "insert, beside the peers"),
    Headline("held-out AP of TGN after one epoch", "train", "TGN held-out AP"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *DEVELOPERS], help="benchmarks to run")
    parser.add_argument("--data", type=Path, action="append", default=[], help="event files")
    parser.add_argument("--entries", help="sizes of graphs, as in 1e6,1e7")
    parser.add_argument("--events", type=int, help="the stream's first events, where models learn")
    given = parser.parse_args(arguments)
    for name in given.names:
        measure(name, given.data, given.entries, given.events)
    for page in PAGES:
        path = ROOT / page
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
    draw_pictures(GUIDES)


def measure(name: str, data: Sequence[Path], entries: str | None, events: int | None) -> None:
    """Run one of the benchmarks of `make bench` and keep its rows."""
    sizes = tuple(int(float(size)) for size in entries.split(",")) if entries else ()
    options = Options(data=data, entries=sizes, events=events, say=print)
    rows = importlib.import_module(DEVELOPERS[name].module).run(options)
    words = [name, *(f"--data {file.name}" for file in data)]
    words += [
        f"--{option} {value}"
        for option, value in (("entries", entries), ("events", events))
        if value
    ]
    record(name, f'make bench ARGS="{" ".join(words)}"', rows)


def filled(page: str, folder: Path = FOLDER) -> str:
    """Return the page with its tables and pictures as the results have them."""
    results = {file.stem: load(file) for file in sorted(folder.glob("*.json"))}

    def on_gpu(_: Mapping[str, Result]) -> Iterator[str]:
        return gpu_goals.goal_table(gpu_goals.results(folder))

    def table(match: re.Match[str]) -> str:
        name = match[2]
        tables = {
            "headlines": headline_table,
            "libraries": library_table,
            "accuracies": accuracy.headline_table,
            "gpu": on_gpu,
        }
        if name in tables:
            lines = tables[name](results)
        else:
            lines = result_tables(results[name]) if name in results else iter((NOT_MEASURED,))
        return match[1] + "\n".join(lines) + "\n" + match[3]

    return with_pictures(_MARKED.sub(table, page), folder)


def headline_table(results: Mapping[str, Result]) -> Iterator[str]:
    """Yield the lines of the first table; rows of a GPU are in its own results."""
    yield "| what | tgflow | beside, or to reach | ratio | on a GPU | command |"
    yield "|---|--:|--:|--:|--:|---|"
    for headline in HEADLINES:
        result = results[headline.result]
        row = find(result.rows, headline)
        other = row.baseline if row.baseline is not None else row.target
        yield _line(
            headline.what,
            f"**{compact(row.value)}** {row.unit}",
            "" if other is None else compact(other),
            "" if row.ratio is None else f"{row.ratio:.2f}",
            _on_gpu(results, headline),
            f"`{result.command}`",
        )


def _on_gpu(results: Mapping[str, Result], headline: Headline) -> str:
    """Return a GPU's figure; nothing where there is none to be."""
    if headline.on_gpu is None:
        return ""
    result = results.get(gpu_goals.PREFIX + headline.result)
    params = headline.params if headline.gpu_params is None else headline.gpu_params
    wanted = replace(headline, name=headline.on_gpu, params=params)
    rows = [] if result is None else fitting(result.rows, wanted)
    measured = [row for row in rows if not math.isnan(row.value)]
    return f"**{compact(measured[0].value)}**" if measured else gpu_goals.NOT_MEASURED


def find(rows: Sequence[Row], headline: Headline) -> Row:
    """Return the one row that a headline means."""
    found = fitting(rows, headline)
    if len(found) != 1:
        raise ValueError(f"{len(found)} rows fit {headline}")
    return found[0]


def fitting(rows: Sequence[Row], headline: Headline) -> list[Row]:
    """Return the rows that a headline may mean."""
    return [
        row
        for row in rows
        if row.name == headline.name and headline.params.items() <= row.params.items()
    ]


def library_table(results: Mapping[str, Result]) -> Iterator[str]:
    """Yield the lines of the table of tgflow beside other libraries."""
    yield _line("", *LIBRARIES)
    yield _line("---", *("--:" for _ in LIBRARIES))
    for headline in BESIDE:
        rows = fitting(results[headline.result].rows, headline)
        values = {row.params.get("library"): row.value for row in rows}
        yield _line(headline.what, *(_value(values.get(library)) for library in LIBRARIES.values()))


def _value(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else compact(value)


def result_tables(result: Result) -> Iterator[str]:
    """Yield the lines of a result: where it comes from, its tables, and what falls short."""
    yield f"`{result.command}`; {result.machine}; {result.date}; commit {result.commit}."
    for grid in grids(result.rows):
        yield ""
        crossing = CROSSINGS.get(grid.name)
        if crossing is None:
            yield from _grid_table(grid)
        else:
            rows = [row for row in result.rows if row.name == grid.name]
            yield f"**{grid.name}**, {'ratio' if crossing.ratio else grid.unit}"
            yield ""
            yield from (_line(*cells) for cells in crossed_table(rows, crossing))
    yield ""
    yield _short(result.rows)


def _grid_table(grid: Grid) -> Iterator[str]:
    unit = f", {grid.unit}" if grid.unit else ""
    common = f"; {', '.join(grid.common)}" if grid.common else ""
    yield f"**{grid.name}**{unit}{common}"
    yield ""
    filled_columns = [
        i for i, title in enumerate(grid.header) if any(row[i] for row in grid.cells) or not title
    ]
    yield _line(*(grid.header[i] for i in filled_columns))
    yield _line(*("--:" if grid.is_number[i] else "---" for i in filled_columns))
    for cells, reached in zip(grid.cells, grid.reached, strict=True):
        marked = [*cells[:-1], f"**{cells[-1]}: short**" if reached is False else cells[-1]]
        yield _line(*(marked[i] for i in filled_columns))


def _short(rows: Sequence[Row]) -> str:
    missed = [row for row in rows if row.reached is False]
    if not missed:
        return "Nothing falls short."
    names = dict.fromkeys(row.name for row in missed)
    return f"Falls short in {len(missed)} of {len(rows)} rows: {', '.join(names)}."


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
