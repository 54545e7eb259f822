"""In which unit the times of a stream are: as somebody said, or as its first rows show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction

from tgflow.iso import has_zone, iso_seconds
from tgflow.streams.rows.schema import Scale
from tgflow.units import check_unit, exact_number, ticks_per_unit

YEARS = (date(1980, 1, 1), date(2100, 1, 1))
"""Between which numbers of ms, us and ns since 1970 are known for what they are."""
_FINE = ("ms", "us", "ns")


@dataclass(frozen=True, slots=True)
class Times:
    """The units of a stream's times, None where its first rows are to show them.

    Args:
        unit: Of the numbers in the file; without a tick it is found by their size, else s.
        tick: Of the stream's int64 ticks.

    Raises:
        ValueError: If one is unknown, or a tick is coarser than the unit.
    """

    unit: str | None = None
    tick: str | None = None

    def __post_init__(self) -> None:
        """Check the units."""
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
            numbers = _numbers(values)
            found.append(
                f"times are read as {unit}, by their size (the first is {_shown(numbers[0], unit)}"
                "); time_unit='s' reads them as seconds"
            )
        if tick != unit and self.tick is None:
            found.append(f"times have decimals, and are kept in {tick}")
        if texts and not all(map(has_zone, texts)):
            found.append("times without a zone are read as UTC")
        scale = Scale.between(unit, tick)
        return scale.of_text() if texts else scale, "; ".join(found) or None


def _unit_of(values: Sequence[object]) -> str | None:
    """Return ms, us or ns if most values are numbers that, taken as it, are dates of our days."""
    numbers = _numbers(values)
    low, high = ((day - date(1970, 1, 1)).days * 86_400 for day in YEARS)
    for unit in _FINE:
        per_second = int(ticks_per_unit("s", unit))
        if _are_most([n for n in numbers if low <= n / per_second < high], values):
            return unit
    return None


def _numbers(values: Sequence[object]) -> list[Fraction]:
    return [number for value in values if (number := exact_number(value)) is not None]


def _are_most(some: Sequence[object], values: Sequence[object]) -> bool:
    """Return whether they are more than half: a bad row decides nothing for others."""
    return 2 * len(some) > len(values)


def _finest(values: Sequence[datetime | str]) -> str:
    """Return the coarsest unit from seconds on in which all times are whole."""
    parts = {_part_of_second(value).denominator for value in values}
    for unit in ("s", "ms", "us"):
        if all(ticks_per_unit("s", unit) % part == 0 for part in parts):
            return unit
    return "ns"


def _part_of_second(value: datetime | str) -> Fraction:
    if isinstance(value, str):
        return (iso_seconds(value) or Fraction(0)) % 1
    return Fraction(1000 * value.microsecond + getattr(value, "nanosecond", 0), 10**9)


def _shown(number: Fraction, unit: str) -> str:
    seconds = number / ticks_per_unit("s", unit)
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=int(seconds))
    return f"{moment:%Y-%m-%d %H:%M:%S}"
