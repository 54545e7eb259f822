"""Row schema: columns, units of time and limits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from tgflow.base.iso_time import has_zone, time_seconds
from tgflow.base.setting import EXPERT, Setting, Size, check_ranges
from tgflow.base.text import printable
from tgflow.base.units import (
    check_unit,
    exact_number,
    parse_bytes,
    seconds_per_tick,
    ticks_per_unit,
)

IdKind = Literal["int", "string"]
ID_KINDS: Mapping[IdKind, str] = {"int": "integers", "string": "text"}
"""Words for the kinds of ids in messages."""

YEARS = (date(1980, 1, 1), date(2100, 1, 1))
"""Range of dates in which ms, us and ns since 1970 are recognized by magnitude."""

_OTHER_UNITS = ("s", "ms", "us", "ns", "d")
_NUMBERS_OF_YEARS = range(1000, YEARS[1].year + 1)
_FIRST_SECOND, _LAST_SECOND = (86_400.0 * (day.toordinal() - 719_163) for day in YEARS)
"""Range since 1970; a first time outside of it is likely misread."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Exact conversion of decimal numbers in `unit` to whole ticks of 1 `tick`.

    A tick is `value * per_unit`; numbers with more than `digits` decimals are never whole ticks.
    With `is_text` the column is text: times such as `2024-05-01 12:00:00`, possibly with numbers.
    """

    unit: str
    tick: str
    per_unit: int = 1
    digits: int = 0
    is_time: bool = True
    is_text: bool = False
    format: str | None = None
    """Format of the texts, as in `datetime.strptime`; None: ISO 8601 or SQL."""

    def code(self, kind: str) -> str:
        """Return the error code of a number of the wrong `kind`: type, precision or range."""
        if self.is_time:
            return f"time_{kind}"
        return "range" if kind == "range" else "type"

    @classmethod
    def between(cls, unit: str, tick: str, format: str | None = None) -> Scale:
        """Return the scale from numbers in `unit`, or texts of a `format`, to ticks of 1 `tick`."""
        per_unit = ticks_per_unit(unit, tick)
        if per_unit.denominator != 1:
            raise ValueError(
                f"tick_unit={tick!r} is coarser than time_unit={unit!r}; pass a finer one"
            )
        count = per_unit.numerator
        digits = sum(count % 2**i == 0 or count % 5**i == 0 for i in range(1, 64))
        return cls(unit, tick, count, digits, is_text=format is not None, format=format)


UNSCALED = Scale("tick", "tick", is_time=False)
"""Scale of whole numbers that are not times, such as labels."""


@dataclass(frozen=True, slots=True)
class Times:
    """Units of a stream's times, None where the first rows decide."""

    unit: str | None = None
    tick: str | None = None
    format: str | None = None

    def __post_init__(self) -> None:
        for unit in (self.unit, self.tick):
            if unit is not None:
                check_unit(unit)
        if self.unit is not None:
            Scale.between(self.unit, self.tick or self.unit)

    def scale(self, first: Iterable[object]) -> tuple[Scale, str | None]:
        """Return the scale of the times, and a sentence on the detected units, None without any."""
        values = [value for value in first if value is not None]
        if self.format is not None:  # 20240115 is a text then
            values = [str(v) if isinstance(v, int) else v for v in values]
        texts = [v for v in values if isinstance(v, str) and self._seconds(v) is not None]
        texts = texts if _are_most(texts, values) else []
        dated: list[datetime | str] = [*texts, *(v for v in values if isinstance(v, datetime))]
        unit = self.unit or (None if self.tick else _unit_of(values)) or "s"
        tick = self.tick or (unit if self.unit or not dated else self._finest(dated))
        found = []
        if self.unit is None and unit != "s":
            seconds = _numbers(values)[0] / ticks_per_unit("s", unit)
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=int(seconds))
            found.append(
                f"times are read as {unit}, by their size (the first is {moment:%Y-%m-%d %H:%M:%S}"
                "); time_unit='s' reads them as seconds"
            )
        if tick != unit and self.tick is None:
            found.append(f"times have decimals, and are kept in {tick}")
        if texts and "%z" not in (self.format or "") and not all(map(has_zone, texts)):
            found.append("times without a zone are read as UTC")
        scale = Scale.between(unit, tick, self.format)
        return replace(scale, is_text=scale.is_text or bool(texts)), "; ".join(found) or None

    def _seconds(self, text: str) -> Fraction | None:
        return time_seconds(text, self.format)

    def _finest(self, values: Sequence[datetime | str]) -> str:
        """Return the coarsest unit, from seconds down, in which all times are whole."""
        parts = [
            (self._seconds(x) or Fraction(0)) % 1
            if isinstance(x, str)
            else Fraction(1000 * x.microsecond + getattr(x, "nanosecond", 0), 10**9)
            for x in values
        ]
        for unit in ("s", "ms", "us"):
            if all((part * ticks_per_unit("s", unit)).denominator == 1 for part in parts):
                return unit
        return "ns"


def _unit_of(values: Sequence[object]) -> str | None:
    """Return ms, us or ns if most values, taken in that unit, are dates in the known range."""
    numbers = _numbers(values)
    low, high = ((day - date(1970, 1, 1)).days * 86_400 for day in YEARS)
    for unit in ("ms", "us", "ns"):
        per_second = int(ticks_per_unit("s", unit))
        if _are_most([n for n in numbers if low <= n / per_second < high], values):
            return unit
    return None


def time_guard(first: int, unit: str) -> str | None:
    """Return a warning for a first time in ticks before 1980 or after 2100, except 0.

    The number of a year, as in graphs of facts by year, is a tick of its own.
    """

    def is_recent(unit: str) -> bool:
        return _FIRST_SECOND <= first * seconds_per_tick(unit) < _LAST_SECOND

    if unit == "tick" or first == 0 or first in _NUMBERS_OF_YEARS or is_recent(unit):
        return None
    others = (u for u in _OTHER_UNITS if u != unit and is_recent(u))
    meant = next((f"--time-unit {u}?" for u in others), "is --t the right column?")
    is_early = first * seconds_per_tick(unit) < _FIRST_SECOND
    if is_early and seconds_per_tick(unit) > 1:  # days, hours or minutes are counted from a start
        return None
    side = "before 1980" if is_early else "after 2100"
    return f"the first time, {first:,} {unit}, is {side} if it counts from 1970: {meant}"


def _numbers(values: Sequence[object]) -> list[Fraction]:
    return [number for value in values if (number := exact_number(value)) is not None]


def _are_most(some: Sequence[object], values: Sequence[object]) -> bool:
    return 2 * len(some) > len(values)  # one bad row must not decide for the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """Limits on rows; a row that exceeds one becomes a dead letter."""

    max_bad_ratio: Annotated[float, Ge(0), Le(1), Setting(resume="any_time")] = 0.05
    """Maximum share of bad rows among the last 10,000 of a partition; above it the run stops."""
    max_abs: Annotated[float, Ge(0), EXPERT] | None = None
    """Largest absolute value of a feature; unset: any that float32 holds."""
    max_record_bytes: Annotated[Size, EXPERT] = "1MiB"
    """Maximum bytes of a record of a topic, or of a line of a text file with its line end."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.max_bytes < 1:
            raise ValueError(f"max_record_bytes must be at least 1, got {self.max_record_bytes}")

    @property
    def max_bytes(self) -> int:
        """`max_record_bytes` as a number."""
        return parse_bytes(self.max_record_bytes)


@dataclass(frozen=True, kw_only=True)
class ColumnNames:
    """Columns of events that hold one value per row, by their names, and the values of labels."""

    src: str = "src"
    """Column of the source node; by default src, or the only one with a usual name: user, account,
    customer, ..."""
    dst: str = "dst"
    """Column of the destination node; by default dst, or item, shop, merchant, ..."""
    t: str = "t"
    """Column of the time; by default t, or time, date, timestamp, ts, at, ..."""
    relation: str | None = None
    """Column of the relation, that is the type of the edge: texts, or integers from 0 to 65,535."""
    label: str | None = None
    """Column of the label."""
    positive_label: str | None = None
    """Label that is class 1, where the other is class 0; unset: 1 or true, of 0/1, -1/1 and
    false/true."""
    unknown_label: Annotated[tuple[str, ...] | None, Setting(resume="from_now")] = None
    """Label that means not known, beside empty, null and NaN; may be repeated. Such an event is
    learned as a link alone."""
    label_values: Annotated[tuple[str, ...] | None, Setting(resume="from_now")] = None
    """Label that is a class, repeated for each, and no others; unset: with a target, counted
    in files before the first event is learned."""
    weight: str | None = None
    """Column of weights, at least 0: the training loss of each event is multiplied by its weight;
    unset: 1."""

    @property
    def has_coded_labels(self) -> bool:
        """Whether labels are read by `label_values`, `positive_label` or `unknown_label`."""
        given = self.label_values, self.positive_label, self.unknown_label
        return self.label is not None and given != (None, None, None)

    @property
    def label_names(self) -> tuple[str, ...]:
        """Texts of the labels 0, 1, ... of events; none where labels are numbers themselves."""
        values = tuple(self.label_values or ())
        is_plain = values in PLAIN_PAIRS or (len(values) > 2 and all(map(_WHOLE.fullmatch, values)))
        return () if is_plain else values

    @property
    def label_shown(self) -> tuple[str | int, ...]:
        """Labels as the stream has them, by their numbers; none where labels are the numbers.

        With a positive label alone, the name of all others is not known.
        """
        values = tuple(self.label_values or ())
        if len(values) != 2:
            values = self.label_names
            if self.label_values is None and self.positive_label is not None:
                values = (f"not {self.positive_label}", self.positive_label)
        return tuple(map(int, values)) if all(map(_WHOLE.fullmatch, values)) else values


MOST_LABELS = 64
"""Maximum number of classes that are counted rather than given, and have columns in scores."""
_WHOLE = re.compile(r"-?[0-9]{1,18}")
PLAIN_PAIRS = (("0", "1"), ("-1", "1"))
"""Two labels of which the second is known to be class 1; false and true are 0 and 1."""
UNCOUNTED = ("-1", *PLAIN_PAIRS[0])
"""Two labels of a stream that is not counted: the first two are class 0."""
OPTIONAL: Mapping[str, type] = {"relation": int, "label": int, "weight": float}
"""Optional fields of `ColumnNames` with their value types, in the order of a CSV record."""


@dataclass(frozen=True, kw_only=True)
class Columns(ColumnNames):
    """The columns of one file that form its events, and the optional event id, by name."""

    features: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    """Columns of categories; not among `features`."""
    event_id: str | None = None
    label_time: str | None = None
    """Column of the time of the label, in rows of labels that come after their events."""
    texts: frozenset[str] = frozenset()
    """Columns of relations or labels that are texts."""
    fill_missing: float | None = None
    """Value of missing features; None: such a row is rejected."""

    @classmethod
    def of(cls, names: ColumnNames, **others: Any) -> Columns:
        """Return the columns in `names`, together with `others`."""
        given = {each.name: getattr(names, each.name) for each in fields(ColumnNames)}
        if names.label is not None and names.has_coded_labels:
            others["texts"] = frozenset({names.label})
        return cls(**given, **others)

    def single(self, *kinds: type) -> list[str]:
        """Return the optional columns of these types that the file has."""
        found = (getattr(self, name) for name, kind in OPTIONAL.items() if kind in kinds)
        return [name for name in found if name]

    @property
    def numbers(self) -> tuple[str, ...]:
        """Numeric columns that become float32."""
        return (*self.features, *self.single(float))

    @property
    def names(self) -> list[str]:
        """All columns, each once."""
        others = (*self.single(int), self.event_id, *self.numbers, *self.categorical)
        every = (self.src, self.dst, *self.times, *others)
        return [*dict.fromkeys(filter(None, every))]

    @property
    def times(self) -> list[str]:
        """Columns of times."""
        return [self.t, *filter(None, [self.label_time])]


def listed(names: Sequence[str]) -> str:
    """Format column names for a message: the first 8, escaped."""
    return printable(", ".join(names[:8])) + ", ..." * (len(names) > 8)
