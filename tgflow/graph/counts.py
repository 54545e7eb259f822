"""Numbers that models request for each scored pair, computed from counts of past events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from tgflow.base.choices import CountClock, CountOf
from tgflow.base.describe import described

MAX_DEPTH = 64
"""Largest depth: most recent destinations of a source considered."""
MAX_RANK = 32
"""Distinct destinations that ranks and covisits are of."""
MAX_KEYS = 2**26
"""Keys kept of each kind but those of nodes and pairs, such as two destinations in turn: 2**20 in
each of the 64 parts that they are divided into."""
_FOLLOWING = ("transition", "transition_row", "window", "window_row")
_OF_SOURCE = ("pair", "src", "src_new", "src_switch", "own_transition")


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
    * `src_new`: events from u to a destination that u had no event to: how many distinct
      destinations u has. `dst_new`: events to v from a source that had none to v.
    * `dst_first`: events to v that were their source's first.
    * `src_switch`: events from u whose previous event from u had another destination.
      `dst_switch`: events to v whose source's previous event had another destination.
    * `own_transition`: events from u to v right after one from u to u's last destination.
    * `covisit`: events that gave a source both of v and p, where p is u's last distinct destination
      but `depth` - 1: how many sources have both, of which the second was new at most K distinct
      destinations after the first. K is the largest depth of the plan's `covisit`.
    * `pair_relation`, `src_relation`, `dst_relation`, `relation`: events with the relation of the
      scored event from u to v; from u; to v; of all. Without relations all events have one.
    * `all`: all events.

    Where u has fewer than `depth` events there is no p, and the count is 0. Distinct destinations
    are looked for in 8 events each, at most. Kinds of several nodes that are not a pair of the log
    keep `MAX_KEYS` keys: events of later ones are not counted.

    Args:
        of: Which events are counted.
        depth: For `transition`, `transition_row`, `window`, `window_row`, `covisit`: which of the
            last destinations p is, 1 for the last one.
        half_life: If not None, also sum the events with weights of 1/2 to the power of their
            age over this: in seconds, or in events.
        clock: Unit of `half_life`. An event's age in `events` is the number of log positions
            from it to the cut-off, at least 1; its age in events of its `source` that of the
            source's events, for kinds that count events from u.

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
        most = MAX_RANK if self.of == "covisit" else MAX_DEPTH
        if not 1 <= self.depth <= most:
            raise ValueError(f"depth must be from 1 to {most}, got {self.depth}")
        if self.depth > 1 and self.of not in (*_FOLLOWING, "covisit"):
            raise ValueError(f"depth is for {', '.join(_FOLLOWING)}, covisit, not for {self.of}")
        if self.clock == "source" and self.of not in _OF_SOURCE:
            raise ValueError(f'clock="source" is for {", ".join(_OF_SOURCE)}, not for {self.of}')
        if self.half_life is not None and not 1e-9 <= self.half_life <= 1e18:
            raise ValueError(f"half_life must be from 1e-9 to 1e18, got {self.half_life}")
        if self.half_life is None and self.clock != "seconds":
            raise ValueError(f'clock="{self.clock}" is for a half_life, which is None')

    @property
    def num(self) -> Number:
        """Number of events."""
        return Number("num", count=self)

    @property
    def age(self) -> Number:
        """Seconds from the log's latest counted event to the pair's time, above 0; -1 for none."""
        return Number("age", count=self)

    @property
    def decayed(self) -> Number:
        """Sum of the events' weights."""
        if self.half_life is None:
            raise ValueError(f"the weights of {self.of} do not decay: give a half_life")
        return Number("decayed", count=self)

    def within(self, seconds: float) -> Number:
        """Return the number of events at most so many seconds before the pair's time."""
        if not 0 < seconds <= 1e18:
            raise ValueError(f"seconds must be above 0, and at most 1e18, got {seconds}")
        return Number("within", count=self, constant=float(seconds))

    @property
    def rank(self) -> Number:
        """Distinct destinations with a later event than the last counted one.

        Of `pair`: destinations of u; of `dst`: of all sources. `MAX_RANK` if there is none, or it
        is not among as many, found in the last 8 `MAX_RANK` events.
        """
        if self.of not in ("pair", "dst"):
            raise ValueError(f"pair and dst have a rank, {self.of} has none")
        return Number("rank", count=self)

    @property
    def since(self) -> Number:
        """Events from u after the last counted one; -1 for none."""
        if self.of not in _OF_SOURCE:
            raise ValueError(f"since is for {', '.join(_OF_SOURCE)}, not for {self.of}")
        return Number("since", count=self)


@dataclass(frozen=True, slots=True)
class Number:
    """A number of each scored pair, computed natively in float64 from counts of its past.

    The numbers of a `Count`, such as `Count.num`, `LOOP`, and what `+ - * / >= <=`, the methods and
    `where` make of these and of constants. Comparisons are 1 or 0.
    Models list the numbers that they read as `counts`; equal parts of several numbers are computed
    once.

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
        raise TypeError(
            "a Number has no value before a batch is made; use tgflow.graph.counts.where"
        )

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
LOOP = Number("loop")
"""1 for the pair of a node with itself, else 0."""


def number(value: Operand) -> Number:
    """Return a number as it is, or a constant."""
    if isinstance(value, int | float):
        return Number("constant", constant=float(value))
    if not isinstance(value, Number):
        raise TypeError(
            f"counts must be numbers such as Count('pair').num, got {type(value).__name__}"
        )
    return value


def where(condition: Number, value: Operand, other: Operand) -> Number:
    """Return `value` where the condition is not 0, else `other`."""
    return Number("where", (condition, number(value), number(other)))


def latest(age: Number, other: Number) -> Number:
    """Return the lower of two ages, where -1 is none."""
    return where(age.minimum(other) >= 0, age.minimum(other), age.maximum(other))


Values: TypeAlias = NDArray[np.float64]


def leaves(numbers: Sequence[Number]) -> tuple[Number, ...]:
    """Return the distinct numbers that others are made of and that depend on a pair.

    These are the numbers of a `Count`, such as its `num`, and `LOOP`; in order of first use.
    """
    found: dict[Number, None] = {}

    def visit(each: Number) -> None:
        if not each.args and each.op != "constant":
            found.setdefault(each)
        for operand in each.args:
            visit(operand)

    for each in numbers:
        visit(each)
    return tuple(found)


def evaluated(numbers: Sequence[Number], values: Mapping[Number, Any]) -> Values:
    """Return numbers for given values of their leaves, float64 `[N, C]`.

    For changed histories of a pair; batches get theirs from the native core.
    """
    known = {each: np.asarray(value, np.float64) for each, value in values.items()}

    def value(each: Number) -> Values:
        if each not in known:
            operands = [*map(value, each.args)]
            known[each] = np.asarray(_OPS[each.op](*operands) if operands else each.constant)
        return known[each]

    size = np.broadcast_shapes(*(x.shape for x in known.values()))
    with np.errstate(all="ignore"):  # of branches that `where` does not take
        columns = [np.broadcast_to(value(each), size) for each in numbers]
    return np.stack(columns, axis=-1) if columns else np.zeros((*size, 0))


_OPS: Mapping[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "at_least": lambda x, y: (x >= y) * 1.0,
    "where": lambda condition, x, y: np.where(condition != 0, x, y),
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "log2": np.log2,
}
