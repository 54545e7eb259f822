"""Many learners in one checkpoint: the sections of each have a prefix of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class Prefixed:
    """The sections of one participant among those of a checkpoint.

    Args:
        prefix: Before the names of its sections.
        notes: What it notes.
        sections: The checkpoint, which is written or read.
    """

    def __init__(self, prefix: str, notes: dict[str, Any], sections: Any) -> None:
        self._prefix, self._notes, self._sections = prefix, notes, sections

    @property
    def meta(self) -> Mapping[str, Any]:
        """What was noted, by name."""
        return self._notes

    def note(self, name: str, value: Any) -> None:
        """Take what JSON can hold."""
        self._notes[name] = value

    def put(self, name: str, tensors: Any, *, volatile: bool = False) -> None:
        """Take a section."""
        self._sections.put(self._prefix + name, tensors, volatile=volatile)

    def put_part(self, name: str, part: int, make: Any, *, volatile: bool = False) -> None:
        """Take the section of a part of ids."""
        self._sections.put_part(self._prefix + name, part, make, volatile=volatile)

    def put_sealed(self, name: str, make: Any, **of: Any) -> None:
        """Take a section whose content never changes."""
        self._sections.put_sealed(self._prefix + name, make, **of)

    def sync_before(self, make_durable: Callable[[], None]) -> None:
        """Call `make_durable` before the checkpoint counts."""
        self._sections.sync_before(make_durable)

    def get(self, name: str) -> Any:
        """Return a section."""
        return self._sections.get(self._prefix + name)
