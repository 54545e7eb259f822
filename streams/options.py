"""Options that map the rows of files to events: columns, time units, formats; needs no pyarrow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

from tgflow.base.iso_time import check_format
from tgflow.base.setting import EXPERT, Setting, Size, check_ranges, check_text
from tgflow.base.units import parse_bytes
from tgflow.streams.rows.schema import ColumnNames, IdKind

Unit = Literal["s", "ms", "us", "ns", "m", "h", "d", "day", "tick"]
FileFormat = Literal[
    "csv", "tsv", "parquet", "arrow", "jsonl", "jodie", "dyglib", "snap", "edges", "konect",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TextLayout:
    """File format, and the layout of delimited text."""

    format: FileFormat | None = None
    """Format; unset: by the name's ending."""
    header: bool | None = None
    """Whether the first line of delimited text names the columns; unset: unless --columns does."""
    columns: str | Sequence[str] | None = None
    """Column names for files without a header, such as src,dst,_,t; _ ignores a column."""
    sep: str | None = None
    """Separator of values: a character, tab, or space for any run of spaces and tabs."""
    comment: Annotated[str, EXPERT] | None = None
    """Prefix of comment lines in text files, such as #."""


@dataclass(frozen=True, kw_only=True)
class StreamOptions(ColumnNames, TextLayout):
    """Options that map the rows of a source to events; the keyword arguments of `open_stream`.

    Times may be numbers, timestamps, and texts such as `2024-05-01 12:00:00.5+02:00` (ISO 8601 or
    SQL); without a zone they are UTC. `time_unit=None` detects the unit from the first rows: ms, us
    or ns if all are dates of 1980 to 2099 in that unit, else s. Times between two ticks are an
    error, never rounded: `time_unit="s", tick_unit="ms"` keeps 3 decimals. The least and the
    largest int64 are not valid times.

    Relations and labels are integers, booleans (0 and 1), or texts, which become 0, 1, ... in order
    of appearance (`EventSource.classes`); no texts in Kafka's records. With `positive_label`,
    `unknown_label` (also ()) or `label_values`, labels are read by their values, of any type, and
    become `tgflow.graph.events.NO_LABEL` where empty, null, NaN or unknown. Features may also be
    columns of lists; None reads those that the format declares (JODIE's), else none. Features of
    categorical columns follow the others.
    """

    features: str | Sequence[str] | None = None
    """Edge feature columns: names, or a prefix such as f*."""
    categorical: str | Sequence[str] | None = None
    """Columns of categories that become edge features: a slot of 0 or 1 for each of the first
    max_categories values, numbered as they appear, and one for all others."""
    max_categories: Annotated[int, Ge(1), Le(10_000), EXPERT] = 32
    """Values of a categorical column that get slots of their own."""
    fill_missing: float | None = None
    """Value of features that are empty, null or NaN, and of all features of nodes without a row;
    unset: such a row is rejected."""
    time_unit: Unit | None = None
    """Unit of numeric times; unset: detected from the first rows. ISO 8601 times need none."""
    tick_unit: Annotated[Unit | None, EXPERT] = None
    """Unit to store times in; finer than time_unit if they have decimals; unset: time_unit, or the
    unit that the first dates need."""
    time_format: str | None = None
    """Format of times that are texts, as in Python's strptime, such as %m/%d/%Y; unset: ISO 8601 or
    SQL, as 2024-05-01 12:00:00."""
    id_kind: IdKind | None = None
    """Type of the node ids; unset: int if all ids of the first 100 rows (of stdin and followed
    files: the first row) are integers written as such; 007, +7, 7.0 and texts make ids text."""
    max_file_bytes: Annotated[Size | None, Setting(resume="any_time", expert=True)] = None
    """Maximum bytes that a compressed file may unpack to, such as 20GiB; unset: 200 times its own
    size, at least 1GiB."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.fill_missing is not None and not math.isfinite(self.fill_missing):
            raise ValueError(f"fill_missing must be a finite number, got {self.fill_missing}")
        if self.time_format is not None:
            check_format(self.time_format)
        if self.max_file_bytes is not None:
            check_text("max_file_bytes", self.max_file_bytes, parse_bytes)

    @property
    def unit(self) -> str:
        """Unit of numeric times: `time_unit`, or s if unset."""
        return self.time_unit or "s"

    @property
    def tick(self) -> str:
        """Unit of a tick: `tick_unit`, or the unit of times if unset."""
        return self.tick_unit or self.unit
