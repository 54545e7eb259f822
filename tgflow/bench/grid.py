"""Rows of benchmarks as cells of text: one table per name, a column per parameter that varies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tgflow.bench.row import Row
from tgflow.report.formatting import compact

LEAST_SHORTENED = 10_000
"""Numbers from here on are written with a suffix."""
FIGURES = ("measured", "baseline", "ratio", "to reach")
"""The columns behind the parameters."""


@dataclass(frozen=True, slots=True)
class Grid:
    """One table."""

    name: str
    unit: str
    common: tuple[str, ...]
    """`parameter=value` of what all rows share."""
    header: tuple[str, ...]
    is_number: tuple[bool, ...]
    """Of each column, whether it is of numbers."""
    cells: tuple[tuple[str, ...], ...]
    reached: tuple[bool | None, ...]
    """Of each row; None where there is nothing to reach."""


def grids(rows: Sequence[Row]) -> Iterator[Grid]:
    """Yield a table for each name, in the order in which the names came."""
    for name in dict.fromkeys(row.name for row in rows):
        yield _grid(name, [row for row in rows if row.name == name])


def _grid(name: str, rows: Sequence[Row]) -> Grid:
    keys = dict.fromkeys(key for row in rows for key in row.params)
    written = {key: [_cell(row.params.get(key, "")) for row in rows] for key in keys}
    varying = [key for key, cells in written.items() if len(set(cells)) > 1]
    numeric = [all(not isinstance(row.params.get(k, 0), str) for row in rows) for k in varying]
    return Grid(
        name=name,
        unit=rows[0].unit,
        common=tuple(f"{key}={written[key][0]}" for key in keys if key not in varying),
        header=(*varying, *FIGURES),
        is_number=(*numeric, *(True for _ in FIGURES)),
        cells=tuple(
            (*(written[key][i] for key in varying), *_figures(row)) for i, row in enumerate(rows)
        ),
        reached=tuple(row.reached for row in rows),
    )


def _figures(row: Row) -> tuple[str, str, str, str]:
    """Return what was measured, the baseline, the ratio, and what is to be reached."""
    goals = [] if row.target is None else [compact(row.target)]
    if row.target_ratio is not None and row.baseline is not None:
        goals.append(f"{row.target_ratio:.2g}x")
    return (
        compact(row.value),
        "" if row.baseline is None else compact(row.baseline),
        "" if row.ratio is None else f"{row.ratio:.2f}x",
        ", ".join(goals),
    )


def _cell(value: str | float) -> str:
    """Write a parameter: large counts short."""
    large = not isinstance(value, str) and value >= LEAST_SHORTENED
    return compact(float(value)) if large else str(value)
