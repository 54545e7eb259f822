"""Places in the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, order=True)
class LogPosition:
    """A place in the log, after a frame."""

    segment: int
    byte: int

    def to_json(self) -> dict[str, int]:
        """Return what `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, int]) -> LogPosition:
        """Return the position that `to_json` wrote.

        Raises:
            ValueError: If it is none.
        """
        place = tuple(value.get(name) for name in ("segment", "byte"))
        if any(type(x) is not int or x < 0 for x in place):
            raise ValueError(f"a log position has segment and byte, got {dict(value)}")
        return cls(value["segment"], value["byte"])
