"""Write the tables of BENCHMARKS.md, README.md and a guide from results.

    python -m benchmarks.report sample store --data wikipedia.csv.gz   measure, keep the rows,
                                                                       write the tables
    python -m benchmarks.report                                        write the tables only

A table stands between `<!-- rows: NAME -->` and `<!-- end -->`, where NAME is one of `TABLES`, or
`libraries` (README), `held-out`, `accuracies`, `missed`, or `gpu`, the goals on a GPU.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import accuracy, gpu_goals
from benchmarks.__main__ import BENCHMARKS, options_of, parser
from benchmarks.race import OWN
from benchmarks.results import FOLDER, Params, Result, Row, line, load, markdown_table, record
from benchmarks.train import SETTINGS
from tgflow.report.formatting import compact

ROOT = Path(__file__).parents[2]
PAGES = ("BENCHMARKS.md", "README.md", "examples/guides/how-fast.md")
_MARKED = re.compile(r"(<!-- rows: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


class Picked(NamedTuple):
    """Rows of one file of results that a table shows, in the order of their names."""

    result: str
    names: Sequence[str]
    params: Params | None = None
    """Parameters that a row must have."""

    def of(self, results: Mapping[str, Result]) -> list[Row]:
        """Return the rows that were measured."""
        return [
            row
            for name in self.names
            for row in results[self.result].rows
            if (row.name == name and (self.params or {}).items() <= row.params.items())
            and not math.isnan(row.value)
        ]


TGN_BESIDE = "TGN training, beside a peer"
TIMES_PYG = "TGN training, times PyTorch Geometric"
_OWN: Params = {"library": OWN}
_FP32: Params = {"precision": "fp32"}

TABLES: Mapping[str, Sequence[Picked]] = {
    "peers": (
        Picked("libraries", (TGN_BESIDE, "TGAT training, beside a peer")),
        Picked("libraries", ("two hops, beside the peers", "insert, beside the peers"), _OWN),
        Picked("train-models", ("GraphMixer training, beside a peer",)),
        Picked("train-models", ("TPNet training, beside a peer",)),
        Picked("train-models", ("DyGFormer training, beside a peer",)),
    ),
    "cpus": (Picked("cpus", (TIMES_PYG,)),),
    "parts": (
        Picked("sample", ("recent, cold", "uniform, cold"), {"entries": 10_000_000}),
        Picked("store", ("insert, bulk", "insert, micro-batches"), {"entries": 10_000_000}),
        Picked(
            "prepare", ("prepare, TGN, 1 hop of 10", "prepare, TGAT, 2 hops of 10"), {"x_dim": 0}
        ),
        Picked("table", ("gather rows",), {"dim": 172}),
        Picked("disk", ("table on disk",), {"floats": 768}),
        Picked("stream", ("files, to the log",)),
        Picked("kafka", ("Kafka to log, arrow", "Kafka to log, json")),
        Picked("serve", ("serve, p99 beside learning",)),
        Picked("host", ("host, micro-batch, GIL",), {"model": "default"}),
    ),
    "products": (Picked("step", ("step, matrix products",)),),
    "rules": (Picked("rules", ("rules, prequential", "one against 999, validation pass")),),
    "scaling": (
        Picked("threads", ("threads, training",)),
        Picked("ranks", ("ranks, TGN", "ranks, TGAT"), {"by": "2 ranks"}),
        Picked("ranks", ("ranks, kill -9 to learning again",)),
        Picked("reuse", ("reuse, training TGAT, beside none", "reuse, AP lost"), {"staleness": 8}),
    ),
    "accuracy": (Picked("accuracy", ("prequential AP",), {"model": "tgn+pairs"}),),
    "reliability": (
        Picked(
            "reliability",
            (
                "kill -9 at random, bit-identical final state",
                "interleavings of partitions with crashes, bit-identical",
                "crash states, recovered to the old or new state",
                "fault points x kill, enospc, eio, raise, recovered",
            ),
        ),
    ),
}
"""The tables of the pages; all other measurements are in the result files."""
LIBRARIES = {
    "tgflow": ("tgflow", "batch"),
    "PyTorch Geometric": ("torch_geometric", "batch"),
    "TGM": ("tgm-lib", "batch"),
    "tgflow, event-exact": ("tgflow", "event"),
}
"""Titles of the README's table, and library and visibility of their rows."""
BESIDE: Mapping[str, Picked] = {
    "training TGN, events/s": Picked("libraries", ("TGN training",), _FP32),
    "training TGAT, 2 hops of 10, events/s": Picked("libraries", ("TGAT training",)),
    "sampling 2 hops of 10 for 600 roots, us": Picked("libraries", ("two hops, beside the peers",)),
    "inserting batches of 200, events/s": Picked("libraries", ("insert, beside the peers",)),
    "held-out AP of TGN after one epoch, time encoded as in each library's example": Picked(
        "libraries", ("TGN held-out AP",), _FP32
    ),
}


HELD_OUT: Mapping[str, Picked] = {
    settings: Picked("held-out", ("TGN held-out AP",), {"settings": settings})
    for settings in SETTINGS
}
"""Rows of the table that explains the AP of peers."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    given = parser("python -m benchmarks.report", __doc__).parse_args(arguments)
    words = [f"--data {file.name}" for file in given.data]
    words += ["--entries " + ",".join(map(str, given.entries))] if given.entries else []
    words += [f"--events {given.events}"] if given.events else []
    for name in given.names:
        rows = BENCHMARKS[name].run(options_of(given))
        command = f'make bench ARGS="{" ".join([name, *words])}"'
        file = record(name, command, rows)
        if name == "libraries":
            record("cpus", command, cpu_rows(load(FOLDER / "cpus.json").rows, load(file)))
    for page in PAGES:
        path = ROOT / page
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")


def cpu_rows(kept: Sequence[Row], result: Result) -> list[Row]:
    """Return the ratios of TGN's speeds by machine, replacing that of the machine of `result`."""
    where: Params = {"machine": result.machine, "date": result.date, "commit": result.commit}
    is_beside: Params = {"library": "torch_geometric", "precision": "fp32"}
    measured = [
        Row(TIMES_PYG, row.ratio, "x", where)
        for row in Picked("libraries", (TGN_BESIDE,), is_beside).of({"libraries": result})
        if row.ratio is not None
    ]
    others = [row for row in kept if row.params["machine"] != result.machine or not measured]
    return sorted([*others, *measured], key=lambda row: row.value)


def filled(page: str, folder: Path = FOLDER) -> str:
    """Return the page with its tables written from the results in `folder`."""
    results = {file.stem: load(file) for file in sorted(folder.glob("*.json"))}
    special: dict[str, Callable[[], Iterator[str]]] = {
        "libraries": lambda: readme_table(results),
        "held-out": lambda: library_table(results, HELD_OUT),
        "accuracies": lambda: accuracy.headline_table(results),
        "missed": lambda: missed_targets(results),
        "step": lambda: step_table(results["step"]),
        "gpu": lambda: gpu_goals.goal_table(gpu_goals.results(folder)),
    }

    def table(match: re.Match[str]) -> str:
        name = match[2]
        lines = special[name]() if name in special else picked_table(TABLES[name], results)
        return match[1] + "\n".join(lines) + "\n" + match[3]

    return _MARKED.sub(table, page)


def picked_table(picks: Sequence[Picked], results: Mapping[str, Result]) -> Iterator[str]:
    """Yield the lines of a table of rows, and the machines below it."""
    yield from markdown_table([row for pick in picks for row in pick.of(results)])
    yield ""
    yield from _machines(results, picks)


def _machines(results: Mapping[str, Result], picks: Iterable[Picked]) -> Iterator[str]:
    for name in dict.fromkeys(pick.result for pick in picks):
        result = results[name]
        yield f"{name}: `{result.command}`, {result.machine}, {result.date}, {result.commit}  "


def step_table(result: Result) -> Iterator[str]:
    """Yield the milliseconds of a step by kind of work, and a line of their machine."""
    by_kind: dict[Any, dict[str, float]] = {}
    for row in result.rows:
        if row.name == "step, time":
            setting = f"{row.params['level']} {row.params['precision']}"
            by_kind.setdefault(row.params["kind"], {})[setting] = row.value
    settings = list(next(iter(by_kind.values())))
    yield line("milliseconds", *settings)
    yield line("---", *("--:" for _ in settings))
    for kind, ms in by_kind.items():
        yield line(kind, *(f"{ms[setting]:.1f}" for setting in settings))
    yield ""
    yield f"`{result.command}`, {result.machine}, {result.date}, {result.commit}"


def missed_targets(results: Mapping[str, Result]) -> Iterator[str]:
    """Yield a line for each result, with the names of rows that miss their targets."""
    for result_name, result in results.items():
        missed = [row for row in result.rows if row.reached is False]
        parts = []
        for name in dict.fromkeys(row.name for row in missed):
            num = sum(row.name == name for row in result.rows)
            ratios = [row.ratio for row in missed if row.name == name and row.ratio is not None]
            worst = f", at worst {min(ratios):.2f}x" if ratios else ""
            num_missed = sum(row.name == name for row in missed)
            parts.append(f"{name} ({num_missed} of {num}{worst})")
        if parts:
            yield f"- {result_name}: {'; '.join(parts)}"


def readme_table(results: Mapping[str, Result]) -> Iterator[str]:
    """Yield the README's table, with the range of the first row's ratio over machines."""
    yield from library_table(results, BESIDE)
    ratios = [row.value for row in results["cpus"].rows]
    span = f"{min(ratios):.1f} to {max(ratios):.1f} times"
    yield f"TGN trains {span} as fast as in PyTorch Geometric, [by CPU](BENCHMARKS.md#by-cpu)."


def library_table(results: Mapping[str, Result], beside: Mapping[str, Picked]) -> Iterator[str]:
    """Yield the lines of a table of tgflow against other libraries, of those with a figure."""
    values = {
        what: {
            (row.params["library"], row.params.get("visibility", "batch")): row.value
            for row in pick.of(results)
        }
        for what, pick in beside.items()
    }
    shown = {t: key for t, key in LIBRARIES.items() if any(key in row for row in values.values())}
    yield line("", *shown)
    yield line("---", *("--:" for _ in shown))
    for what, row in values.items():
        found = (row.get(key) for key in shown.values())
        yield line(what, *("" if value is None else compact(value) for value in found))
    yield ""
    yield from _machines(results, beside.values())


if __name__ == "__main__":
    main()
