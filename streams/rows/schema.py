"""Which columns of a table make an event, and what its numbers mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

from tgflow.iso import iso_seconds
from tgflow.streams.errors import StreamError
from tgflow.units import ticks_per_unit

IdKind = Literal["int", "string"]


class NumberCodes(NamedTuple):
    """The codes of numbers that are none, that fall between two ticks, or exceed int64."""

    type: str
    precision: str
    range: str


_TIME_CODES = NumberCodes("time_type", "time_precision", "time_range")
_NUMBER_CODES = NumberCodes("type", "type", "range")
_SEPARATORS = {";": ";", "\t": "tab", "|": "|", ",": ",", " ": "space"}
"""What often stands between values, and what settings call it."""


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
    fault_codes: NumberCodes = _TIME_CODES
    is_text: bool = False

    def of_text(self) -> Scale:
        """Return it for a column of texts."""
        return replace(self, is_text=True)

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


UNSCALED = Scale("tick", "tick", fault_codes=_NUMBER_CODES)
"""For whole numbers that are not times, as labels."""


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


class Tabular(Protocol):
    """A file or table that knows its columns' names."""

    name: str
    """What messages call it."""

    def names(self) -> Sequence[str] | None:
        """Return the names of the columns, or None if it has neither rows nor names."""
        ...

    def default_features(self) -> Sequence[str]:
        """Return the feature columns of a stream that declares none."""
        ...


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

    def select(self, table: Tabular) -> Columns | None:
        """Return the columns to read of one file, None if it has neither rows nor names.

        Raises:
            StreamError: If one is missing or there twice; the message lists what is there.
        """
        names = table.names()
        if names is None:
            return None
        wanted = {"src": self.src, "dst": self.dst, "t": self.t}
        if self.label is not None:
            wanted["label"] = self.label
        if self.weight is not None:
            wanted["weight"] = self.weight
        if self.event_id is not None:
            wanted["event_id"] = self.event_id
        for role, name in wanted.items():
            _require(table, names, role, name)
        features = table.default_features() if self.features is None else self.features
        if isinstance(features, str):
            features = _with_prefix(table, names, features, set(wanted.values()))
        for name in features:
            _require(table, names, "features", name)
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


def _with_prefix(
    table: Tabular, names: Sequence[str], prefix: str, used: set[str]
) -> Sequence[str]:
    found = [name for name in names if name.startswith(prefix) and name not in used]
    if not found:
        text = f"no feature column starts with {prefix!r}; the columns are {listed(names)}"
        raise StreamError(table.name, "schema", text)
    return found


def _require(table: Tabular, names: Sequence[str], role: str, name: str) -> None:
    if (count := names.count(name)) == 1:
        return
    found = f"{count} columns are named" if count else "there is no column"
    text = f"{found} {name!r}; the columns are {listed(names)}: choose with {role}=..."
    values = names
    if len(names) == 1 and (separator := _separator_in(names[0])) is not None:
        values = names[0].split(separator)
        text += f"; or does another character stand between values? sep={_SEPARATORS[separator]!r}"
    if not count and any(map(_is_value, values)):
        text += "; or is the first line a row? header=False columns='src,dst,t' reads it as one"
    raise StreamError(table.name, "schema", text)


def _separator_in(line: str) -> str | None:
    """Return what may stand between the values of a line that was read as one; None if nothing."""
    num = {character: line.count(character) for character in _SEPARATORS}
    likely = max(num, key=lambda character: num[character])
    return likely if num[likely] >= 2 else None


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
