"""Figures in a CSV file."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tgflow.callbacks.logger import FigureCallback, numbers
from tgflow.describe import described

STEP = "step"


@described
class CSVLogger(FigureCallback):
    """Logs figures to a CSV file, a row for each step, which others can read at once.

    A figure that comes up later, as `running.replay_ap` does, adds a column, which is empty in the
    rows before.

    Args:
        path: The file.
        step: Where the training is that is logged. Rows of the file up to this step stay, later
            ones are removed; of a training that begins, 0, none stays.

    Raises:
        OSError: If the file cannot be written.
        ValueError: If it is there, and is no such file.

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

    def __init__(self, path: str | os.PathLike[str], *, step: int = 0) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._write([row for row in _rows(self.path) if int(row[STEP]) <= step])

    def _facts(self) -> dict[str, object]:
        return {"path": str(self.path)}

    def log(self, step: int, figures: Mapping[str, Any]) -> None:
        """Write the figures of a step as a row."""
        row = {STEP: step, **numbers(figures)}
        if row.keys() <= {*self._writer.fieldnames}:
            self._writer.writerow(row)
            self._file.flush()
        else:
            self._file.close()
            self._write([*_rows(self.path), row])

    def flush(self) -> None:
        """Have all rows on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write all rows anew, with a column for each figure there is, and go on behind them."""
        names = dict.fromkeys([STEP, *(name for row in rows for name in row)])
        partial = self.path.with_name(f".{self.path.name}.partial")
        self._file = partial.open("w", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, list(names), lineterminator="\n")
        self._writer.writeheader()
        self._writer.writerows(rows)
        self._file.flush()
        partial.replace(self.path)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a file that are whole; none if it is not there.

    Raises:
        ValueError: If it is another file.
    """
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(line for line in file if line.endswith("\n"))
            if STEP not in (reader.fieldnames or [STEP]):
                raise ValueError(
                    f"{path} is no file of figures, it has no column {STEP}; name another one"
                )
            yield from reader
