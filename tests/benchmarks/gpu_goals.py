"""GPU targets and measured values, as shown in BENCHMARKS.md.

python -m benchmarks.gpu_goals ROWS FOLDER...   keep the rows of ROWS/*-NAME.json, as `--json`
                                                prints them, as results of GPU benchmarks in
                                                each FOLDER; print the table of the last
"""

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.results import COSTS, FOLDER, Params, Result, Row, load, record, row_of
from tgflow.report.formatting import compact

PREFIX = "gpu-"
"""Prefix of the names of GPU results."""
NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure to reach on one H100 or H200."""

    what: str
    bench: str
    """The benchmark,"""
    name: str
    """its rows' name,"""
    goal: float
    unit: str
    params: Params = field(default_factory=dict)
    """and what their parameters must have."""
    published: str = ""
    """Published values of others, and their hardware."""
    is_ratio: bool = False
    """Whether the goal is the row's ratio to its baseline."""


_50M: Params = {"entries": 50_000_000}
_10M: Params = {"entries": 10_000_000}
_TGN = "TGN training on the device"
_TGAT = "TGAT training on the device"
GOALS: Sequence[Goal] = (
    Goal("training TGN, B = 200", "train", _TGN, 0.5e6, "events/s", {"batch": 200}, "TGL 30k"),
    Goal("training TGN, B = 600", "train", _TGN, 1.2e6, "events/s", {"batch": 600}),
    Goal("training TGN, B = 4,000", "train", _TGN, 3e6, "events/s", {"batch": 4000},
         "GNNFlow 82k per A100"),
    Goal("training TGAT, 10 x 10, B = 200", "train", _TGAT, 0.3e6, "events/s", {"batch": 200},
         "TGM 10k, A100"),
    Goal("training TGAT, 10 x 10, B = 600", "train", _TGAT, 0.6e6, "events/s", {"batch": 600},
         "GNNFlow 11k per A100"),
    Goal("training TGAT, 10 x 10, B = 4,000", "train", _TGAT, 1.2e6, "events/s", {"batch": 4000}),
    Goal("training TGN, batch-stale, times PyG there, B = 200", "train",
         "TGN training on the device, beside a peer", 5.0, "x", {"library": "torch_geometric"},
         is_ratio=True),
    Goal("training TGAT, batch-stale, times TGM there, B = 200", "train",
         "TGAT training on the device, beside a peer", 5.0, "x", {"library": "tgm-lib"},
         is_ratio=True),
    Goal("epoch of TGN with look-ahead, times without, B = 600", "train", "epoch with look-ahead",
         2.0, "x", {"model": "TGN", "batch": 600}, "SALIENT 3.3x"),
    Goal("continual TGN, 20 negatives, replay, B = 200", "first", "TGN continual learning",
         0.35e6, "events/s", {"batch": 200, "negatives": 20, "replay": 0.5}),
    Goal("continual default model, B = 200", "first", "default model continual learning",
         0.2e6, "events/s", {"batch": 200}),
    Goal("`tgflow run --device cuda`, all defaults", "first", "`tgflow run`", 0.2e6, "events/s",
         {"device": "cuda"}),
    Goal("1 M events/s appended beside training TGN", "train", "training beside appends", 5.0,
         "% slower"),
    Goal("10 recent neighbors, 50 M entries", "sample", "recent, cold", 300e6, "queries/s", _50M),
    Goal("10 uniform neighbors, 50 M entries", "sample", "uniform, cold", 150e6, "queries/s", _50M),
    Goal("insert 1,000, then sample 3,000, times a rebuild", "sample",
         "update, then sample, over the device's own rebuild", 21.0, "x", _10M, "GNNFlow 21x",
         is_ratio=True),
    Goal("inserting in bulk", "store", "insert, bulk", 150e6, "events/s", _10M),
    Goal("inserting batches of 1,000", "store", "insert, micro-batches", 2e6, "events/s", _10M),
    Goal("inserting batches of 1,000, p99", "store", "insert, micro-batches, p99", 1e3, "us", _10M),
    Goal("gather from uva, 172 floats, share of the bus", "table", "bus in use", 0.8,
         "of pinned copy", {"dim": 172}),
    Goal("gather from device, 172 floats, share of the memory's bandwidth", "table",
         "memory bandwidth in use", 0.8, "of a copy", {"dim": 172}),
    Goal("gather through a cache, times plain uva", "table",
         "gather through a cache, over plain uva", 1.0, "x", {"ids": 4_000}, "", True),
)  # fmt: skip


def keep(rows_folder: Path, folder: Path = FOLDER) -> dict[str, Result]:
    """Record what was measured, benchmark by benchmark; returns the results by benchmark."""
    rows: dict[str, list[Row]] = {}
    for file in sorted(rows_folder.glob("*-*.json")):
        text = file.read_text(encoding="utf-8")
        if text.rstrip().endswith("]"):  # otherwise it was killed at its time limit
            found = [row_of(plain) for plain in json.loads(text)]
            rows.setdefault(file.stem.partition("-")[2], []).extend(found)
    for name, measured in rows.items():
        record(PREFIX + name, f"make gpu STAGES=bench ({name})", measured, folder)
    return results(folder)


def results(folder: Path = FOLDER) -> dict[str, Result]:
    """Return the results of GPU benchmarks by the benchmark's name."""
    files = sorted(folder.glob(f"{PREFIX}*.json"))
    return {file.stem.removeprefix(PREFIX): load(file) for file in files}


def measured(goal: Goal, rows: Sequence[Row]) -> float | None:
    """Return the measured value of a goal, if a row has it."""
    for row in rows:
        if row.name == goal.name and goal.params.items() <= row.params.items():
            value = row.ratio if goal.is_ratio else row.value
            if value is not None and not math.isnan(value):
                return value
    return None


def goal_table(found: Mapping[str, Result]) -> Iterator[str]:
    """Yield the lines of the table of all goals."""
    yield "| on a GPU | measured | goal | published |"
    yield "|---|--:|--:|---|"
    for goal in GOALS:
        rows = found[goal.bench].rows if goal.bench in found else ()
        value = measured(goal, rows)
        text = NOT_MEASURED
        if value is not None:
            short = value > goal.goal if goal.unit in COSTS else value < goal.goal
            text = f"**{compact(value)}**{': short' if short else ''}"
        yield f"| {goal.what} | {text} | {compact(goal.goal)} {goal.unit} | {goal.published} |"
    yield ""
    of: dict[str, dict[str, None]] = {}
    for each in found.values():
        where = f"{each.machine}, {each.date}, {each.commit}"
        of.setdefault(where, {})[f"`{each.command}`"] = None
    for where, commands in of.items():
        yield f"{where}: {'; '.join(commands)}  "


if __name__ == "__main__":
    rows_folder, *folders = map(Path, sys.argv[1:])
    kept = [keep(rows_folder, folder) for folder in folders]
    print("\n".join(goal_table(kept[-1])))
