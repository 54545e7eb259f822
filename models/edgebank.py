"""EdgeBank: Towards Better Evaluation for Dynamic Link Prediction, NeurIPS 2022, arXiv:2207.10128.

Poursafaei, Huang, Pelrine, Rabbany.

Differs from the paper:
    * All events before a query count, also those of its own batch. With `visibility="batch"` only
      those before the batch count, as in published figures.
    * The window ends at the query, not at the latest event. By default, the best window so far is
      used (see `Heuristic`); before a test, over validation.
    * Pairs not seen within the window score 0, as those never seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Gt

from tgflow.base.describe import described
from tgflow.base.setting import Checked
from tgflow.models.heuristic import Heuristic, PairDirection, pair_age
from tgflow.nn.model import make_config

WINDOWS = (3600.0, 86_400.0, 604_800.0, 2_592_000.0, 31_536_000.0)
"""Seconds, tried if no window is given: an hour, a day, a week, 30 days, a year."""


@described
@dataclass(frozen=True, kw_only=True)
class EdgeBankConfig(Checked):
    """Settings of EdgeBank with unlimited memory."""

    direction: PairDirection = "forward"
    """forward: events of a pair in the same direction; both: in either."""


@described
@dataclass(frozen=True, kw_only=True)
class EdgeBankTWConfig(EdgeBankConfig):
    """Settings of EdgeBank with a time window."""

    window: Annotated[float, Gt(0)] | None = None
    """Seconds; unset: the best one of an hour to a year. TGB: 15 % of the training's time."""


class EdgeBank(Heuristic):
    """1 for pairs that were seen before, 0 for others.

    Example:
        >>> tg.ContinualTrainer(tg.EdgeBank(), tg.TemporalGraph()).run([many])["num_events"]
        400
    """

    config_type: ClassVar[type[Any]] = EdgeBankConfig

    def __init__(self, config: EdgeBankConfig | None = None, **settings: Any) -> None:
        c = make_config(EdgeBankConfig, config, settings)
        super().__init__(["unlimited"], [pair_age(c.direction) >= 0])


class EdgeBankTW(Heuristic):
    """1 for pairs that were seen within a time window, 0 for others.

    Example:
        >>> tg.EdgeBankTW(window=3600.0).candidates
        (3600.0,)
    """

    config_type = EdgeBankTWConfig

    def __init__(self, config: EdgeBankTWConfig | None = None, **settings: Any) -> None:
        c = make_config(EdgeBankTWConfig, config, settings)
        windows = WINDOWS if c.window is None else [c.window]
        age = pair_age(c.direction)
        super().__init__(windows, [(age >= 0) * (age <= seconds) for seconds in windows])

    def figures(self) -> dict[str, Any]:
        """Return the `window` in use, in seconds."""
        return {"window": super().figures()["rule"]}
