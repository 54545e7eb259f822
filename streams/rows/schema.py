"""What a row must be to become an event: columns, units of time and limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from typing import Annotated, Literal

from annotated_types import Ge, Le

from tgflow.iso import has_zone, iso_seconds
from tgflow.setting import Setting, Size, check_ranges
from tgflow.streams.errors import StreamError
from tgflow.units import (
    INT64_MAX,
    INT64_MIN,
    check_unit,
    exact_number,
    parse_bytes,
    ticks_per_unit,
)

IdKind = Literal["int", "string"]

YEARS = (date(1980, 1, 1), date(2100, 1, 1))
"""Between which numbers of ms, us and ns since 1970 are recognized by their size."""
_SEPARATORS = {";": ";", "\t": "tab", "|": "|", ",": ",", " ": "space"}
"""What often separates values, and its name in settings."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How decimal numbers in `unit` become whole ticks of 1 `tick`, never rounded.

    A tick is `value * per_unit`; no number with more than `digits` decimals is a whole tick. With
    `is_text` the column is text: times such as `2024-05-01 12:00:00`, and numbers among them.
    """

    unit: str
    tick: str
    per_unit: int = 1
    digits: int = 0
    is_time: bool = True
    is_text: bool = False

    def code(self, kind: str) -> str:
        """Return the error code of a number of the wrong `kind`: type, precision or range."""
        if self.is_time:
            return f"time_{kind}"
        return "range" if kind == "range" else "type"

    @classmethod
    def between(cls, unit: str, tick: str) -> Scale:
        """Return the scale from numbers in `unit` to ticks of 1 `tick`.

        Raises:
            ValueError: If a name is unknown, or a `unit` is not a whole number of ticks.
        """
        per_unit = ticks_per_unit(unit, tick)
        if per_unit.denominator != 1:
            raise ValueError(
                f"tick_unit={tick!r} is coarser than time_unit={unit!r}; pass a finer one"
            )
        count = per_unit.numerator
        return cls(unit, tick, count, max(_multiplicity(2, count), _multiplicity(5, count)))


def _multiplicity(prime: int, number: int) -> int:
    count = 0
    while number % prime == 0:
        number, count = number // prime, count + 1
    return count


UNSCALED = Scale("tick", "tick", is_time=False)
"""For whole numbers that are not times, as labels."""


@dataclass(frozen=True, slots=True)
class Times:
    """The units of a stream's times, None where its first rows decide.

    Args:
        unit: Of the numbers in the file; without a tick it is found by their size, else s.
        tick: Of the stream's int64 ticks.

    Raises:
        ValueError: If one is unknown, or a tick is coarser than the unit.
    """

    unit: str | None = None
    tick: str | None = None

    def __post_init__(self) -> None:
        for unit in (self.unit, self.tick):
            if unit is not None:
                check_unit(unit)
        if self.unit is not None:
            Scale.between(self.unit, self.tick or self.unit)

    def scale(self, first: Iterable[object]) -> tuple[Scale, str | None]:
        """Return how times become ticks, and what was found out, as a sentence.

        Args:
            first: The times of the first rows, as the file has them.
        """
        values = [value for value in first if value is not None]
        texts = [v for v in values if isinstance(v, str) and iso_seconds(v) is not None]
        texts = texts if _are_most(texts, values) else []
        dated: list[datetime | str] = [*texts, *(v for v in values if isinstance(v, datetime))]
        unit = self.unit or (None if self.tick else _unit_of(values)) or "s"
        tick = self.tick or (unit if self.unit or not dated else _finest(dated))
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
        if texts and not all(map(has_zone, texts)):
            found.append("times without a zone are read as UTC")
        scale = replace(Scale.between(unit, tick), is_text=bool(texts))
        return scale, "; ".join(found) or None


def _unit_of(values: Sequence[object]) -> str | None:
    """Return ms, us or ns if most values are numbers that, taken as it, are dates of our days."""
    numbers = _numbers(values)
    low, high = ((day - date(1970, 1, 1)).days * 86_400 for day in YEARS)
    for unit in ("ms", "us", "ns"):
        per_second = int(ticks_per_unit("s", unit))
        if _are_most([n for n in numbers if low <= n / per_second < high], values):
            return unit
    return None


def _numbers(values: Sequence[object]) -> list[Fraction]:
    return [number for value in values if (number := exact_number(value)) is not None]


def _are_most(some: Sequence[object], values: Sequence[object]) -> bool:
    return 2 * len(some) > len(values)  # one bad row must not decide for the others


def _finest(values: Sequence[datetime | str]) -> str:
    """Return the coarsest unit from seconds on in which all times are whole."""
    for unit in ("s", "ms", "us"):
        if all((_part_of_second(v) * ticks_per_unit("s", unit)).denominator == 1 for v in values):
            return unit
    return "ns"


def _part_of_second(value: datetime | str) -> Fraction:
    if isinstance(value, str):
        return (iso_seconds(value) or Fraction(0)) % 1
    return Fraction(1000 * value.microsecond + getattr(value, "nanosecond", 0), 10**9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """What a row must be to become an event; one that is not becomes a dead letter.

    Raises:
        ValueError: If a limit is out of its range.
    """

    max_bad_ratio: Annotated[float, Ge(0), Le(1), Setting(resume="any_time")] = 0.05
    """Share of bad rows among the last 10,000 of a partition that stops the run."""
    max_node_id: Annotated[int, Ge(0), Le(INT64_MAX)] = INT64_MAX
    """Largest integer node id; unset: any int64. Ids are mapped to dense ones, so that a large one
    costs no memory."""
    max_abs: Annotated[float, Ge(0)] | None = None
    """Largest absolute value of a feature; unset: any that float32 holds."""
    min_label: Annotated[int, Setting(expert=True)] = INT64_MIN
    """Smallest label."""
    max_label: Annotated[int, Setting(expert=True)] = INT64_MAX
    """Largest label."""
    max_record_bytes: Size = "1MiB"
    """Longest record of a topic, or line of a text file with its line end."""
    unknown_keys: Annotated[Literal["ignore", "reject"], Setting(expert=True)] = "ignore"
    """JSON: whether keys that nobody named are ignored, or make a row bad."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.max_bytes < 1:
            raise ValueError(f"max_record_bytes must be at least 1, got {self.max_record_bytes}")

    @property
    def max_bytes(self) -> int:
        """`max_record_bytes` as a number."""
        return parse_bytes(self.max_record_bytes)


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one file that make its events, and perhaps an id of each, by name."""

    src: str
    dst: str
    t: str
    label: str | None
    features: tuple[str, ...]
    event_id: str | None = None
    has_classes: bool = False
    """Whether labels are texts."""
    fill_missing: float | None = None
    """What features are that are missing; None: such a row is no event."""
    weight: str | None = None

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns of numbers that become float32."""
        return self.features if self.weight is None else (*self.features, self.weight)

    @property
    def names(self) -> list[str]:
        """All of them, each once."""
        others = (name for name in (self.label, self.event_id) if name)
        return list(dict.fromkeys((self.src, self.dst, self.t, *others, *self.numbers)))


@dataclass(frozen=True, slots=True)
class Schema:
    """What the user declared about the columns of a stream.

    Args:
        src: Name of the column of source nodes.
        dst: Name of the column of destination nodes.
        t: Name of the column of times.
        label: Name of the column of edge types or labels, or None.
        features: Names of the feature columns, or the prefix they share; None for those that the
            format itself declares.
        id_kind: What the node ids are; None to take what the first row holds.
        event_id: Name of the column of ids by which events that come twice are found, or None.
        fill_missing: What features are that are missing, or None.
        weight: Name of the column of weights in the training loss, or None.
    """

    src: str
    dst: str
    t: str
    label: str | None
    features: str | Sequence[str] | None
    id_kind: IdKind | None
    event_id: str | None = None
    fill_missing: float | None = None
    weight: str | None = None

    def select(
        self, where: str, names: Sequence[str], default_features: Callable[[], Sequence[str]]
    ) -> Columns:
        """Return the columns to read of one file.

        Args:
            where: What messages call the file.
            names: Its columns.
            default_features: Returns the feature columns that its format declares.

        Raises:
            StreamError: If one is missing or there twice; the message lists what is there.
        """
        wanted = {"src": self.src, "dst": self.dst, "t": self.t}
        others = {"label": self.label, "weight": self.weight, "event_id": self.event_id}
        wanted |= {role: name for role, name in others.items() if name is not None}
        for role, name in wanted.items():
            _require(where, names, role, name)
        features = default_features() if self.features is None else self.features
        if isinstance(features, str):
            prefix, used = features, set(wanted.values())
            features = [name for name in names if name.startswith(prefix) and name not in used]
            if not features:
                text = f"no feature column starts with {prefix!r}; the columns are {listed(names)}"
                raise StreamError(where, "schema", text)
        for name in features:
            _require(where, names, "features", name)
        return Columns(
            self.src,
            self.dst,
            self.t,
            self.label,
            tuple(features),
            self.event_id,
            fill_missing=self.fill_missing,
            weight=self.weight,
        )


def _require(where: str, names: Sequence[str], role: str, name: str) -> None:
    if (count := names.count(name)) == 1:
        return
    found = f"{count} columns are named" if count else "there is no column"
    text = f"{found} {name!r}; the columns are {listed(names)}: choose with {role}=..."
    values = names
    if len(names) == 1:
        separator = max(_SEPARATORS, key=names[0].count)
        if names[0].count(separator) >= 2:
            values = names[0].split(separator)
            text += "; or does another character stand between values? "
            text += f"sep={_SEPARATORS[separator]!r}"
    if not count and any(map(_is_value, values)):
        text += "; or is the first line a row? header=False columns='src,dst,t' reads it as one"
    raise StreamError(where, "schema", text)


def _is_value(name: str) -> bool:
    """Return whether the name of a column is rather a value of a row: a number, or a time."""
    try:
        float(name)
    except ValueError:
        return iso_seconds(name) is not None
    return True


def listed(names: Sequence[str]) -> str:
    """Return column names as a message lists them: the first 8."""
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:8])}, ..."
