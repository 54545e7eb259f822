"""CSV logger."""

from __future__ import annotations

import csv
import io
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from tgflow.base.describe import described
from tgflow.checkpoint.durable.fs import AppendedFile, RealFs, make_directories
from tgflow.report.callbacks.logger import FigureCallback, numbers

STEP = "step"
_log = logging.getLogger("tgflow.report.callbacks")


@described
class CSVLogger(FigureCallback):
    """Logs figures to a CSV file, one row per step, readable by other processes at once.

    A figure that first appears later, such as `running.replay_ap`, adds a column, which is empty in
    earlier rows.

    Args:
        path: The file.
        step: Current step of the training. On resume, rows of later steps and damaged rows are
            removed; at 0, the start of a training, all rows are.
        max_bytes: Size from which the file is renamed to `NAME.1`, in the place of the one before,
            and a new one begun. None: any size.

    Raises:
        OSError: If the file cannot be written.
        ValueError: If the file exists and is not a CSV file of figures.

    Example:
        >>> with tg.callbacks.CSVLogger("figures.csv") as logger:
        ...     logger.log(200, {"loss": 0.7})
        ...     logger.log(400, {"loss": 0.5, "ap": 0.9})
        >>> print(open("figures.csv").read())
        step,loss,ap
        200,0.7,
        400,0.5,0.9
        <BLANKLINE>
    """

    def __init__(
        self, path: str | os.PathLike[str], *, step: int = 0, max_bytes: int | None = None
    ) -> None:
        self.path, self._max_bytes = Path(path), max_bytes
        self._before = self.path.with_name(f"{self.path.name}.1")
        has_before = max_bytes is not None and self._before.exists()
        files = (self._before, self.path) if has_before else (self.path,)
        columns = [*map(_columns, files)]  # before any is changed
        make_directories(RealFs(), self.path.parent)
        for file, names in zip(files, columns, strict=True):
            self._file = AppendedFile(file)
            kept = (row for row in _rows(file) if int(row[STEP]) <= step)
            self._rewrite(names if step else [STEP], kept)

    def _facts(self) -> dict[str, object]:
        return {"path": str(self.path)}

    def log(self, step: int, figures: Mapping[str, Any]) -> None:
        """Write the figures of a step as a row."""
        row = {STEP: step, **numbers(figures)}
        if self._max_bytes is not None and self._file.size >= self._max_bytes:
            self._file.sync()
            self._file.close()
            self.path.replace(self._before)
            self._file = AppendedFile(self.path)
            self._rewrite(self._columns, ())
        new = [name for name in row if name not in self._columns]
        if new:
            self._rewrite([*self._columns, *new], chain(_rows(self.path), [row]))
        else:
            self._file.write(_line(self._columns, row))

    def flush(self) -> None:
        """Sync all rows to disk."""
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _rewrite(self, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
        """Rewrite all rows with these columns, and continue after them."""
        names = dict(zip(columns, columns, strict=True))
        self._file.replace(_line(columns, row) for row in chain([names], rows))
        self._columns = columns


def _columns(path: Path) -> Sequence[str]:
    """Return the columns of a file; only the step column if it does not exist."""
    columns = next(csv.reader([next(_lines(path), STEP)]))
    if columns[:1] != [STEP]:
        raise ValueError(
            f"{path} is not a file of figures, it has no column {STEP}; name another one, or move "
            "this one away"
        )
    return columns


def _rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the intact rows of a file; none if it does not exist."""
    columns, num_damaged = _columns(path), 0
    for line in islice(_lines(path), 1, None):
        values = line[:-1].split(",")
        if len(values) == len(columns) and _are_figures(*values):
            yield dict(zip(columns, values, strict=True))
        else:
            num_damaged += 1
    if num_damaged:
        _log.warning("%d rows of %s are damaged, and left out", num_damaged, path)


def _are_figures(step: str, *values: str) -> bool:
    try:
        return step.isdecimal() and all(math.isfinite(float(value or 0)) for value in values)
    except ValueError:
        return False


def _lines(path: Path) -> Iterator[str]:
    if path.exists():
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            yield from (line for line in file if line.endswith("\n"))


def _line(columns: Sequence[str], row: Mapping[str, Any]) -> bytes:
    """Format a row as a line, with empty values for missing columns."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(row.get(name, "") for name in columns)
    return text.getvalue().encode()
