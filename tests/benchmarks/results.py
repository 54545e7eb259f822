"""Benchmark results as JSON, each file with its machine, date, commit and command."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from subprocess import run
from typing import Any

import torch

from tgflow.cli.benchmarks.row import Params, Row

FOLDER = Path(__file__).parent / "results"


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
