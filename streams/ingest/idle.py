"""Notices partitions that have been silent for long while the others wait for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

WARN_SECONDS = 60.0

_log = logging.getLogger("tgflow.streams")


class IdlePartitions:
    """How long each partition has had nothing to say.

    Args:
        name: The source's, for messages.
        timeout: Seconds after which a partition is idle; None never.
        clock: Returns seconds that never go back.
    """

    def __init__(self, name: str, timeout: float | None, clock: Callable[[], float]) -> None:
        self._name = name
        self._timeout = timeout
        self._clock = clock
        self._since: dict[int, float] = {}
        self._noted: set[int] = set()

    def heard(self, partitions: Collection[int]) -> None:
        """Hear that they have spoken, or were not asked."""
        self._since.update(dict.fromkeys(partitions, self._clock()))
        self._noted.difference_update(partitions)

    def seconds(self, partition: int) -> float:
        """Return for how long a partition has been silent."""
        now = self._clock()
        return now - self._since.setdefault(partition, now)

    def idle(self, behind: Collection[int], lag: Mapping[int, int]) -> list[int]:
        """Return which of the partitions that hold the others back are idle.

        Warns once of each that is silent for a minute.
        """
        silent = {p: self.seconds(p) for p in behind if not lag.get(p)}
        if self._timeout is not None:
            return sorted(p for p, seconds in silent.items() if seconds >= self._timeout)
        for partition in silent.keys() - self._noted:
            if silent[partition] >= WARN_SECONDS:
                self._noted.add(partition)
                _log.warning(
                    "%s: partition %d has been silent for %.0f s and holds the others back; "
                    "set idle_timeout to continue without it",
                    self._name,
                    partition,
                    silent[partition],
                )
        return []
