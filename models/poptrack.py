"""PopTrack: Temporal graph models fail to capture global temporal dynamics, 2023, arXiv:2309.15730.

Daniluk, Dąbrowski.

Differs from the paper:
    * Counts decay with every event before the query, at the same rate as the paper's, which decay
      after every batch of 200; with `visibility="batch"` they are those of the batch's start.
    * With `window`, popularity is the number of events within it, without decay.
    * By default, the best decay so far is used (see `Heuristic`); before a test, over validation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Gt, Lt

from tgflow.base.describe import described
from tgflow.base.setting import check_ranges
from tgflow.graph.counts import Count
from tgflow.models.heuristic import Heuristic
from tgflow.nn.model import make_config

DECAYS = (0.3, 0.6, 0.9, 0.94, 0.97, 0.99, 0.999)
"""Per 200 events, tried if no decay is given."""


@described
@dataclass(frozen=True, kw_only=True)
class PopTrackConfig:
    """Settings of PopTrack."""

    decay: Annotated[float, Gt(0), Lt(1)] | None = None
    """Remaining share of a count after 200 events; unset: the best one of 0.3 to 0.999."""
    window: Annotated[float, Gt(0)] | None = None
    """Seconds: count the events of a window before the query instead, without decay."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.decay is not None and self.window is not None:
            raise ValueError("popularity decays or has a window: give decay or window, got both")


class PopTrack(Heuristic):
    """Popularity of the destination, with exponential decay by events, or within a time window.

    Example:
        >>> tg.PopTrack(decay=0.9).candidates
        (0.9,)
    """

    config_type = PopTrackConfig

    def __init__(self, config: PopTrackConfig | None = None, **settings: Any) -> None:
        c = make_config(PopTrackConfig, config, settings)
        self.kind = "decay" if c.window is None else "window"
        if c.window is not None:
            super().__init__([c.window], [Count("dst").within(c.window)])
            return
        decays = DECAYS if c.decay is None else [c.decay]
        events = [200 * math.log(2) / -math.log(decay) for decay in decays]
        super().__init__(
            decays, [Count("dst", half_life=n, clock="events").decayed for n in events]
        )

    def figures(self) -> dict[str, Any]:
        """Return the `decay` in use, per 200 events, or the `window` in seconds."""
        return {self.kind: super().figures()["rule"]}
