"""Tables of many rows, written short: the values of one parameter side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tgflow.bench.row import Row
from tgflow.report.formatting import compact


@dataclass(frozen=True, slots=True)
class Crossing:
    """How the rows of one name are written side by side."""

    across: str
    """The parameter whose values are columns."""
    down: tuple[str, ...]
    """The parameters that lines differ in."""
    ratio: bool = False
    """Whether cells are ratios rather than what was measured."""


CROSSINGS: Mapping[str, Crossing] = {
    "cache": Crossing("policy", ("model", "rows of", "share")),
    "cached gather": Crossing("beside", ("x_dim", "rows", "policy", "threads"), ratio=True),
    "TGN loss": Crossing("part", ("library",)),
}
"""By the name of the rows."""


def crossed_table(rows: Sequence[Row], crossing: Crossing) -> Iterator[Sequence[str]]:
    """Yield the cells of a crossed table: its header, its rule, then its lines.

    A cell that falls short of its goal says so.
    """
    columns = list(dict.fromkeys(str(row.params[crossing.across]) for row in rows))
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        key = tuple(_text(row.params.get(name, "")) for name in crossing.down)
        lines.setdefault(key, {})[str(row.params[crossing.across])] = _value(row, crossing)
    yield (*crossing.down, *columns)
    yield (*("---" for _ in crossing.down), *("--:" for _ in columns))
    for key, values in lines.items():
        yield (*key, *(values.get(column, "") for column in columns))


def _value(row: Row, crossing: Crossing) -> str:
    if not crossing.ratio:
        text = compact(row.value)
    else:
        text = "" if row.ratio is None else f"{row.ratio:.2f}x"
    return f"**{text}: short**" if row.reached is False else text


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else compact(float(value))
