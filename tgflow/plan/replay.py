"""Experience replay: past events that a batch learns from again, beside its new ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from tgflow.base.describe import described
from tgflow.plan import _native


@described
@dataclass(frozen=True, slots=True)
class ExperienceReplay:
    """Recency-weighted replay of past events.

    Replayed events are added to a batch; they never replace a new event.

    Args:
        ratio: Replayed events per new event; 0 replays none.
        horizon: Only the last `horizon` events before the batch are drawn from.
        half_life: An event this many events older is half as likely to be drawn; infinity draws
            uniformly.
        first: Events before this log position are not drawn.

    Raises:
        ValueError: If `ratio` is negative or not finite, `horizon` is below 1, or `half_life` below
            1e-6.

    Example:
        >>> replay = tg.plan.ExperienceReplay(ratio=0.5, horizon=50)
        >>> past = replay.draw(key=1, before=100, num_new=10)
        >>> len(past), bool(past.min() >= 50)
        (5, True)
    """

    ratio: float
    horizon: int = 50_000
    half_life: float = 10_000.0
    first: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.ratio < math.inf:
            raise ValueError(f"replay ratio must be finite and at least 0, got {self.ratio}")
        if self.horizon < 1:
            raise ValueError(f"replay horizon must be at least 1 event, got {self.horizon}")
        if not self.half_life >= 1e-6:
            raise ValueError(f"replay half_life must be at least 1e-6 events, got {self.half_life}")

    def draw(self, key: int, before: int, num_new: int, since: int = 0) -> Tensor:
        """Return the log positions to replay beside `num_new` events that start at `before`.

        None is before `since`, the first position of the horizon.

        Returns:
            Distinct positions below `before`, ascending, int64 `[R]` with
            `R = round(ratio * num_new)`, or all that may be drawn if there are fewer.
        """
        begin, num = self.begin(before, since), self.num_events(num_new)
        return _native.draw_replay(begin, before, self.half_life, key, num)

    def begin(self, before: int, since: int = 0) -> int:
        """Return the first log position that may be drawn beside events that start at `before`."""
        first = self.first if self.first > since else since
        first = before - self.horizon if before - self.horizon > first else first
        return first if first < before else before

    def num_events(self, num_new: int) -> int:
        """Return the number of events replayed beside `num_new`, if that many exist."""
        return round(self.ratio * num_new)
