"""Numbers that models request for each scored pair, computed from counts of past events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, get_args

from tgflow.choices import CountClock, CountOf
from tgflow.describe import described

MAX_DEPTH = 64
"""Largest depth: most recent destinations of a source considered."""
_FOLLOWING = ("transition", "transition_row", "window", "window_row")


@described
@dataclass(frozen=True, slots=True)
class Count:
    """Events to count for each scored pair (u, v), as of the pair's cut-off.

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
        >>> dst = tg.counts.Count("dst", half_life=3600)
        >>> plan = tg.Plan.for_model(model, graph, counts=[dst.num, dst.age], batch_size=2)
        >>> plan.batch(0, 1).counts[:, 0].tolist()  # of the events
        [[1.0, 10.0], [1.0, 30.0]]
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

    @property
    def num(self) -> Number:
        """Number of events."""
        return Number("num", count=self)

    @property
    def age(self) -> Number:
        """Ticks from the log's latest counted event to the pair's time, above 0; -1 for none."""
        return Number("age", count=self)

    @property
    def decayed(self) -> Number:
        """Sum of the events' weights."""
        if self.half_life is None:
            raise ValueError(f"the weights of {self.of} do not decay: give a half_life")
        return Number("decayed", count=self)


@dataclass(frozen=True, slots=True)
class Number:
    """A number of each scored pair, computed natively in float64 from counts of its past.

    `Count.num`, `Count.age` and `Count.decayed`, `LOOP`, and what `+ - * / >= <=`, the methods
    and `where` make of these and of constants. Comparisons are 1 or 0. Models list the numbers
    that they read as `counts`; equal parts of several numbers are computed once.

    Example:
        >>> pair = tg.counts.Count("pair")
        >>> plan = tg.Plan.for_model(model, graph, counts=[1 / (1 + pair.num)], batch_size=2)
        >>> plan.batch(0, 0).counts.shape  # events, each and its negative, numbers
        torch.Size([2, 2, 1])
    """

    op: str
    args: tuple[Number, ...] = ()
    count: Count | None = None
    constant: float = 0.0

    def __add__(self, other: Operand) -> Number:
        return Number("add", (self, number(other)))

    def __radd__(self, other: Operand) -> Number:
        return number(other) + self

    def __sub__(self, other: Operand) -> Number:
        return Number("subtract", (self, number(other)))

    def __rsub__(self, other: Operand) -> Number:
        return number(other) - self

    def __mul__(self, other: Operand) -> Number:
        return Number("multiply", (self, number(other)))

    def __rmul__(self, other: Operand) -> Number:
        return number(other) * self

    def __truediv__(self, other: Operand) -> Number:
        return Number("divide", (self, number(other)))

    def __rtruediv__(self, other: Operand) -> Number:
        return number(other) / self

    def __neg__(self) -> Number:
        return number(0.0) - self

    def __ge__(self, other: Operand) -> Number:
        return Number("at_least", (self, number(other)))

    def __le__(self, other: Operand) -> Number:
        return number(other) >= self

    def __bool__(self) -> bool:
        raise TypeError("a Number has no value before a batch is made; use tgflow.counts.where")

    def minimum(self, other: Operand) -> Number:
        """Return the lower of two numbers."""
        return Number("minimum", (self, number(other)))

    def maximum(self, other: Operand) -> Number:
        """Return the higher of two numbers."""
        return Number("maximum", (self, number(other)))

    def exp(self) -> Number:
        """Return e to the power of the number."""
        return Number("exp", (self,))

    def log(self) -> Number:
        """Return the natural logarithm."""
        return Number("log", (self,))

    def log1p(self) -> Number:
        """Return the natural logarithm of 1 + the number."""
        return Number("log1p", (self,))

    def log2(self) -> Number:
        """Return the logarithm to base 2."""
        return Number("log2", (self,))


Operand: TypeAlias = Number | float
TICK = Number("tick")
"""Length of a tick in seconds."""
LOOP = Number("loop")
"""1 for the pair of a node with itself, else 0."""


def number(value: Operand) -> Number:
    """Return a number as it is, or a constant."""
    if isinstance(value, int | float):
        return Number("constant", constant=float(value))
    if not isinstance(value, Number):
        raise TypeError(
            f"counts must be numbers such as Count('pair').num, got a {type(value).__name__}"
        )
    return value


def where(condition: Number, value: Operand, other: Operand) -> Number:
    """Return `value` where the condition is not 0, else `other`."""
    return Number("where", (condition, number(value), number(other)))


def latest(age: Number, other: Number) -> Number:
    """Return the lower of two ages, where -1 is none."""
    return where(age.minimum(other) >= 0, age.minimum(other), age.maximum(other))
