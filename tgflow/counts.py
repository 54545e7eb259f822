"""Counts of past events: what a model asks about each pair that a batch scores, and the answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, get_args

from torch import Tensor

from tgflow.choices import CountClock, CountOf
from tgflow.describe import described

MAX_DEPTH = 64
"""Of the destinations of a source that are looked at, the last ones."""
_FOLLOWING = ("transition", "transition_row", "window", "window_row")


@described
@dataclass(frozen=True, slots=True)
class Count:
    """One number to look up for each pair (u, v) that a batch scores, as of the pair's cut-off.

    What is counted, of the events (x, y) before the cut-off:

    * `pair`, `reverse`: those from u to v; those from v to u.
    * `src`, `dst`: those from u; those to v.
    * `src_as_dst`, `dst_as_src`: those to u; those from v.
    * `transition`: those to v whose source had p as the destination of its event before, where p
      is u's last destination but `depth` - 1, by any source. `transition_row`: those to any y.
    * `window`: those to v, once for each of the last K destinations of their source before that
      were p. K is the largest depth of the `window` and `window_row` that a plan has.
      `window_row`: those to any y.
    * `continuation`: those to v that were the first after the destination that their source had
      before: after how many distinct destinations v came next. `continuation_all`: to any y.
    * `all`: all.

    Where u has fewer than `depth` events there is no p, and nothing is counted.

    Args:
        of: What is counted.
        depth: Of `transition`, `transition_row`, `window`, `window_row`: which of the last
            destinations p is, 1 for the last one.
        half_life: If not None, events are also counted with a weight of 1/2 to the power of their
            age over this: in seconds, or in events.
        clock: What `half_life` is in. An event's age in events is how many positions of the log
            the cut-off is after it, at least 1.

    Raises:
        ValueError: If an argument is out of range, or `depth` or `clock` does nothing here.

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
    """The answers to one `Count`, of a batch's pairs: column 0 is the event, 1..m its negatives.

    Example:
        >>> plan = tg.Plan.for_model(model, graph, counts=[tg.counts.Count("dst")], batch_size=2)
        >>> [found] = plan.batch(0, 1).counts
        >>> found.num[:, 0].tolist(), found.age[:, 0].tolist()
        ([1, 1], [10, 30])
    """

    num: Tensor
    """int64 `[B, 1+m]`: how many events."""
    age: Tensor
    """int64 `[B, 1+m]`: ticks from the one that is latest in the log to the pair's time, more than
    0; -1 if there is none."""
    decayed: Tensor | None
    """float64 `[B, 1+m]`: the sum of the events' weights; None without a `half_life`."""
