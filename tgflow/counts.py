"""Counts of past events that models request for each scored pair, and their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, get_args

from torch import Tensor

from tgflow.choices import CountClock, CountOf
from tgflow.describe import described

MAX_DEPTH = 64
"""Largest depth: most recent destinations of a source considered."""
_FOLLOWING = ("transition", "transition_row", "window", "window_row")


@described
@dataclass(frozen=True, slots=True)
class Count:
    """One number to look up for each scored pair (u, v), as of the pair's cut-off.

    Counted among the events (x, y) before the cut-off:

    * `pair`, `reverse`: events from u to v; from v to u.
    * `src`, `dst`: events from u; to v.
    * `src_as_dst`, `dst_as_src`: events to u; from v.
    * `transition`: events to v whose source's previous event had destination p, where p is u's
      last destination but `depth` - 1, by any source. `transition_row`: the same to any y.
    * `window`: events to v, once for each of the last K earlier destinations of their source
      that equals p. K is the largest depth of the plan's `window` and `window_row`.
      `window_row`: the same to any y.
    * `continuation`: events to v that were the first after their source's previous
      destination: how many distinct destinations v followed. `continuation_all`: to any y.
    * `all`: all events.

    Where u has fewer than `depth` events there is no p, and the count is 0.

    Args:
        of: Which events are counted.
        depth: For `transition`, `transition_row`, `window`, `window_row`: which of the last
            destinations p is, 1 for the last one.
        half_life: If not None, also sum the events with weights of 1/2 to the power of their
            age over this: in seconds, or in events.
        clock: Unit of `half_life`. An event's age in events is the number of log positions
            from it to the cut-off, at least 1.

    Raises:
        ValueError: If an argument is out of range, or `depth` or `clock` has no effect for `of`.

    Example:
        >>> asked = [tg.counts.Count("pair"), tg.counts.Count("dst", half_life=3600)]
        >>> len(tg.Plan.for_model(model, graph, counts=asked).batch(0, 0).counts)
        2
    """

    of: CountOf
    depth: int = 1
    half_life: float | None = None
    clock: CountClock = "seconds"

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("of", self.of, get_args(CountOf)),
            ("clock", self.clock, get_args(CountClock)),
        ):
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
        if not 1 <= self.depth <= MAX_DEPTH:
            raise ValueError(f"depth must be from 1 to {MAX_DEPTH}, got {self.depth}")
        if self.depth > 1 and self.of not in _FOLLOWING:
            raise ValueError(f"depth is for {', '.join(_FOLLOWING)}, not for {self.of}")
        if self.half_life is not None and not 1e-9 <= self.half_life <= 1e18:
            raise ValueError(f"half_life must be from 1e-9 to 1e18, got {self.half_life}")
        if self.half_life is None and self.clock != "seconds":
            raise ValueError('clock="events" is for a half_life, which is None')


@described
class Counts(NamedTuple):
    """Values of one `Count` for a batch's pairs: column 0 is the event, 1..m its negatives.

    Example:
        >>> plan = tg.Plan.for_model(model, graph, counts=[tg.counts.Count("dst")], batch_size=2)
        >>> [found] = plan.batch(0, 1).counts
        >>> found.num[:, 0].tolist(), found.age[:, 0].tolist()
        ([1, 1], [10, 30])
    """

    num: Tensor
    """int64 `[B, 1+m]`: number of events."""
    age: Tensor
    """int64 `[B, 1+m]`: ticks from the latest counted event in the log to the pair's time, more
    than 0; -1 if there is none."""
    decayed: Tensor | None
    """float64 `[B, 1+m]`: sum of the events' weights; None without a `half_life`."""
