"""Rows of measured figures, and results as JSON with machine, date, commit and command."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from subprocess import run
from typing import Any

import torch

from tgflow.report.formatting import compact

FOLDER = Path(__file__).parent / "results"
Params = dict[str, str | int | float]

COSTS = frozenset({
    "us", "ms", "s", "us/step", "bytes/entry", "MB", "of the budget", "of the room", "of before",
    "% slower", "points", "micro-batches",
})  # fmt: skip
"""Units of which less is better."""


LIBRARY = "library", "visibility"
"""Parameters that a table always shows."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure with its baseline and its targets."""

    name: str
    value: float
    """NaN if the figure was not measured; `params` give the reason."""
    unit: str
    params: Params = field(default_factory=dict)
    target: float | None = None
    """The target for `value`, in the same unit."""
    baseline: float | None = None
    """The figure of another method in the same run, in the same unit."""
    target_ratio: float | None = None
    """The target for `ratio`, if there is a baseline."""

    @property
    def ratio(self) -> float | None:
        """How many times better than the baseline, or than the target if there is no baseline."""
        other = self.baseline if self.baseline is not None else self.target
        if not other or math.isnan(self.value):
            return None
        if self.unit in COSTS:
            return other / self.value if self.value else math.inf
        return self.value / other

    @property
    def reached(self) -> bool | None:
        """Whether the targets are reached; None without a target."""
        goals = []
        if self.target is not None:
            less = self.unit in COSTS
            goals.append(self.value <= self.target if less else self.value >= self.target)
        if self.target_ratio is not None and self.baseline is not None:
            goals.append((self.ratio or 0.0) >= self.target_ratio)
        return None if math.isnan(self.value) or not goals else all(goals)

    def to_json(self) -> dict[str, object]:
        """Return a JSON-serializable dict; a figure that was not measured is null."""
        return {
            "name": self.name,
            "params": self.params,
            "value": None if math.isnan(self.value) else self.value,
            "unit": self.unit,
            "baseline": self.baseline,
            "ratio": self.ratio,
            "target": self.target,
            "target_ratio": self.target_ratio,
            "reached": self.reached,
        }


@dataclass(frozen=True, slots=True)
class Result:
    """The rows of one benchmark, with their machine and command."""

    machine: str
    date: str
    commit: str
    command: str
    rows: tuple[Row, ...]


def record(name: str, command: str, rows: Sequence[Row], folder: Path = FOLDER) -> Path:
    """Write the rows of a benchmark that ran just now on this machine; returns the file."""
    head = {"machine": machine(), "date": f"{datetime.now(UTC):%Y-%m-%d}", "commit": commit()}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    lines.append(f' "command": {json.dumps(command)},\n "rows": [')
    plain = ",\n".join("  " + json.dumps(row.to_json()) for row in rows)  # a row a line, to compare
    text = "\n".join(["{", *lines, plain, " ]", "}"])
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}.json"
    file.write_text(text + "\n", encoding="utf-8")
    return file


def load(file: Path) -> Result:
    """Return the results of a file."""
    held = json.loads(file.read_text(encoding="utf-8"))
    return Result(**{**held, "rows": tuple(row_of(plain) for plain in held["rows"])})


def machine() -> str:
    """Return the description of this machine."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    pairs = [(key.strip(), value.strip()) for key, _, value in (x.partition(":") for x in lines)]
    of, num = dict(pairs), sum(key == "processor" for key, _ in pairs)
    cpu = f"{of['model name']} (family {of['cpu family']}, model {of['model']})"
    cores = f"{num} cores of {cpu}, torch {torch.__version__.partition('+')[0]}"
    return f"{torch.cuda.get_device_name()}, {cores}" if torch.cuda.is_available() else cores


def commit() -> str:
    """Return the commit of the working tree."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = run(command, cwd=FOLDER.parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def row_of(plain: dict[str, Any]) -> Row:
    """Return the row of the output of `Row.to_json`."""
    names = ("name", "unit", "params", "target", "baseline", "target_ratio")
    value = math.nan if plain["value"] is None else plain["value"]
    return Row(value=value, **{name: plain[name] for name in names})


def skipped(name: str, unit: str, params: Params, reason: str) -> Row:
    """Return a row for a skipped measurement, with the reason."""
    return Row(name, math.nan, unit, {**params, "skipped": reason})


def markdown_table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a table of rows."""
    yield line("what", "of", "measured", "beside", "ratio", "to reach")
    yield line("---", "---", *("--:" for _ in range(4)))
    for row in rows:
        yield _row_line(row, [each for each in rows if each.name == row.name])


def _row_line(row: Row, alike: Sequence[Row]) -> str:
    """Return the line of a row: its library and the parameters in which rows of its name differ."""
    shown = [
        f"{key} {compact(value) if isinstance(value, float) else value}"
        for key, value in row.params.items()
        if (key in LIBRARY or len({each.params.get(key) for each in alike}) > 1) and value != ""
    ]
    goals = [] if row.target is None else [compact(row.target)]
    if row.target_ratio is not None and row.baseline is not None:
        goals.append(f"{row.target_ratio:.2g}x")
    goal = ", ".join(goals)
    return line(
        row.name,
        ", ".join(shown),
        f"{compact(row.value)} {row.unit}".strip(),
        "" if row.baseline is None else compact(row.baseline),
        "" if row.ratio is None else f"{row.ratio:.2f}x",
        f"**{goal}: missed**" if row.reached is False else goal,
    )


def line(*cells: str) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(cells)} |"
