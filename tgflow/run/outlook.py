"""When memory, disk or memory maps of a run end at its present growth."""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tgflow.base.units import duration
from tgflow.report.formatting import compact, num_bytes
from tgflow.run.machine import anonymous_bytes, free_memory, memory_maps

if TYPE_CHECKING:
    from tgflow.ranks.control import RankControl

EVERY = 30.0
SAMPLES = 120
"""Samples whose growth counts: of an hour."""
SETTLED = 300.0
"""Seconds of samples before growth is known."""
DAY = 86_400.0
_FORGET = "resume with a horizon, --horizon 90d or --horizon-events N: earlier events are forgotten"
HELP = {
    "memory": f"{_FORGET}; or give it more, by --memory-limit where that is set; a rule "
    "(-m recency) takes a tenth of it an event; --edge-table disk and --graph-table disk use files",
    "disk": "--set scores.keep_days=N, operate.keep_dead_letters=N or checkpoint.keep=1 keep less; "
    "--scores and --edge-path may name another disk",
    "maps": f"raise the limit of the system: sysctl vm.max_map_count=262144; or {_FORGET}",
}
Level = Callable[[], tuple[float, float]]  # how much of a resource is used, and how much is free


class Outlook:
    """Growth of resources by the event, and the time that is left."""

    def __init__(
        self, levels: Mapping[str, Level], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._levels, self._clock = levels, clock
        self._samples: deque[tuple[float, int, dict[str, float]]] = deque(maxlen=SAMPLES)
        self._warned: set[str] = set()
        self.found: dict[str, dict[str, Any]] = {}
        """Figures of each resource, as in health.json."""

    def look(self, position: int, num_left: float = inf) -> list[str]:
        """Return a warning for each resource that ends within a day, before `num_left` events."""
        now, warnings, used = self._clock(), [], {}
        if self._samples and now - self._samples[-1][0] < EVERY:
            return []
        for name, level in self._levels.items():
            with suppress(OSError):
                used[name], free = level()
                self.found[name] = {"used": used[name], "free": None if free == inf else free}
        self._samples.append((now, position, used))
        at, first, before = self._samples[0]
        seconds, events = now - at, position - first
        for name in used.keys() & before.keys() if seconds >= SETTLED and events else ():
            found, rate = self.found[name], events / seconds
            growth, free = (used[name] - before[name]) / events, found["free"]
            found |= {"per_event": growth, "events_per_second": rate}
            if growth <= 0 or free is None or free / growth >= num_left:
                self._warned.discard(name)
                continue
            found["seconds_left"] = left = max(0.0, free) / growth / rate
            if left < DAY and name not in self._warned:
                self._warned.add(name)
                warnings.append(f"{name} ends in {describe(name, found)}; {HELP[name.split()[0]]}")
        return warnings


def describe(name: str, found: Mapping[str, Any]) -> str:
    """Describe when a resource ends, from the figures of an `Outlook` with `seconds_left`."""
    size = compact if name == "maps" else num_bytes
    return (
        f"about {duration(found['seconds_left'])} at the present growth: {size(found['free'])} "
        f"free, {size(found['per_event'])} an event, {compact(found['events_per_second'])} events/s"
    )


def memory_left(memory_limit: int | None) -> tuple[float, float]:
    """Return the memory of this process, and how much is left for it."""
    used = anonymous_bytes()
    return used, min(free_memory(), inf if memory_limit is None else memory_limit - used)


def levels_of(
    paths: Sequence[Path], memory_limit: int | None, control: RankControl | None = None
) -> dict[str, Level]:
    """Return the resources of this process, which writes files to `paths`, and of other ranks."""

    def disk() -> tuple[float, float]:
        disks = [shutil.disk_usage(path) for path in paths]
        fullest = min(disks, key=lambda each: each.free)
        return fullest.used, fullest.free

    def memory_of(rank: int) -> tuple[float, float]:
        found = [] if control is None else control.figures[rank : rank + 1]
        if not found or not found[0].free_bytes:
            raise OSError(f"rank {rank} has not sent its memory")
        return found[0].memory_bytes, found[0].free_bytes

    others = range(1, 1 if control is None else control.world)
    return {
        "memory": partial(memory_left, memory_limit),
        **{f"memory of rank {rank}": partial(memory_of, rank) for rank in others},
        "disk": disk,
        "maps": memory_maps,
    }
