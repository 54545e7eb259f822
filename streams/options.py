"""How the rows of files become events: columns, units of time, formats; needs no pyarrow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tgflow.streams.rows.schema import ColumnNames, IdKind

Unit = Literal["s", "ms", "us", "ns", "m", "h", "d", "day", "tick"]
FileFormat = Literal[
    "csv", "tsv", "parquet", "arrow", "jsonl", "jodie", "dyglib", "snap", "edges", "konect", "npz",
    "pt",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TextLayout:
    """Format of files, and the layout of delimited text."""

    format: FileFormat | None = None
    """Format; unset: by the name's ending."""
    header: bool | None = None
    """Whether the first line of delimited text names its columns; unset: unless --columns does."""
    columns: str | Sequence[str] | None = None
    """Names of the columns where no header has them, such as src,dst,_,t; _ is not read."""
    sep: str | None = None
    """What stands between two values: a character, tab, or space for any number of them."""
    comment: str | None = None
    """What lines of text begin with that are no rows, such as #."""


@dataclass(frozen=True, kw_only=True)
class StreamOptions(ColumnNames, TextLayout):
    """How the rows of a source become events; the keyword arguments of `open_stream`.

    Times may be numbers, timestamps, and texts such as `2024-05-01 12:00:00.5+02:00` (ISO 8601, or
    as SQL writes it); without a zone they are UTC. `time_unit=None` goes by the first rows: ms, us
    or ns where all of them are dates of 1980 to 2099 in that unit, else s. Times that fall between
    two ticks are an error, never rounded: `time_unit="s", tick_unit="ms"` keeps 3 decimals. The
    least and the largest int64 are no times.

    Labels are integers, booleans (0 and 1), or texts, which become 0, 1, ... in order of appearance
    (`EventSource.label_classes`). Features may also be columns of lists; None reads those that the
    format declares (JODIE's), else none.

    Raises:
        ValueError: If an option is out of its choices.
    """

    features: str | Sequence[str] | None = None
    """Edge feature columns: names, or a prefix such as f*."""
    fill_missing: float | None = None
    """What features are that are empty, null or NaN, and those of nodes without a row of their own;
    unset: such a row is refused."""
    time_unit: Unit | None = None
    """Unit of numeric times; unset: detected from the first rows. ISO 8601 times need none."""
    tick_unit: Unit | None = None
    """Unit to keep times in; finer than time_unit if they have decimals; unset: time_unit, or what
    the first dates need."""
    id_kind: IdKind | None = None
    """Type of the node ids; unset: as in the first row."""

    def __post_init__(self) -> None:
        if self.id_kind not in (None, "int", "string"):
            raise ValueError(f"unknown id_kind {self.id_kind!r}; choose 'int', 'string' or None")
        if self.fill_missing is not None and not math.isfinite(self.fill_missing):
            raise ValueError(f"fill_missing must be a finite number, got {self.fill_missing}")

    @property
    def unit(self) -> str:
        """What numbers of times count: `time_unit`, or s where nothing gives it."""
        return self.time_unit or "s"

    @property
    def tick(self) -> str:
        """What a tick is: `tick_unit`, or the unit of times where nothing gives it."""
        return self.tick_unit or self.unit
