"""Which neighbors a query takes: a strategy and what it is measured in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from tgflow.choices import Strategy
from tgflow.describe import described

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
_SPANS = {"window": "width", "decayed": "half_life"}


@described
@dataclass(frozen=True, slots=True)
class Sampler:
    """Which of the neighbors that a query sees are taken; see the function `STRATEGY_neighbors`.

    Made by `Sampler.recent()`, `.uniform()`, `.window(width=)` and `.decayed(half_life=)`, or from
    the strategy's name and a span, as settings have them.

    Raises:
        ValueError: If there is no such strategy, or `span` is missing, too small or not asked for.

    Example:
        >>> nodes, t = torch.tensor([0]), torch.tensor([40])
        >>> sampler = tg.Sampler.window(width=15)
        >>> tg.sampling.sample_neighbors(graph, sampler, nodes, t, k=2).nodes.tolist()
        [[3, -1]]
    """

    strategy: Strategy
    """recent, uniform, window or decayed."""
    span: int | None = None
    """Ticks: the `width` of a window, the `half_life` of decayed draws; None for the others."""

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            known = ", ".join(STRATEGIES)
            raise ValueError(f"strategy must be one of {known}, got {self.strategy!r}")
        name = _SPANS.get(self.strategy)
        if name is None:
            if self.span is not None:
                raise ValueError(f"strategy {self.strategy} takes no span, got {self.span}")
        elif self.span is None:
            raise ValueError(f"strategy {self.strategy} needs a span: its {name} in ticks")
        elif not 1 <= self.span < 2**63:
            raise ValueError(f"{name} must be at least 1 tick, got {self.span}")

    @classmethod
    def recent(cls) -> Sampler:
        """Take the latest."""
        return cls("recent")

    @classmethod
    def uniform(cls) -> Sampler:
        """Draw, each as likely."""
        return cls("uniform")

    @classmethod
    def window(cls, *, width: int) -> Sampler:
        """Draw from the last `width` ticks, at least 1, each as likely."""
        return cls("window", width)

    @classmethod
    def decayed(cls, *, half_life: int) -> Sampler:
        """Draw, an event that is `half_life` ticks older, at least 1, half as likely."""
        return cls("decayed", half_life)
