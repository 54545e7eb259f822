"""Sampling strategies: native ones by name, or Python functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from tgflow.base.choices import Strategy
from tgflow.base.describe import described

if TYPE_CHECKING:
    from torch import Tensor

SamplerFunction = Callable[..., "Tensor"]
"""Called as `function(graph, nodes, t, before, since, k, key)`; see `Sampler.of`."""

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
_SPANS = {"window": "width", "decayed": "half_life"}


@described
@dataclass(frozen=True, slots=True)
class Sampler:
    """Selects among the neighbors that a query sees; see the function `STRATEGY_neighbors`.

    Made by `Sampler.recent()`, `.uniform()`, `.window(width=)`, `.decayed(half_life=)` and
    `.of(function)`, or from the strategy and a span.

    Raises:
        ValueError: If the strategy is unknown, or `span` is missing, too small or not used.

    Example:
        >>> nodes, t = torch.tensor([0]), torch.tensor([40])
        >>> sampler = tg.Sampler.window(width=15)
        >>> tg.sampling.sample_neighbors(graph, sampler, nodes, t, k=2).nodes.tolist()
        [[3, -1]]
    """

    strategy: Strategy | SamplerFunction
    """recent, uniform, window or decayed, or a function; see `of`."""
    span: int | None = None
    """Ticks: the `width` of a window, the `half_life` of decayed draws; None for others."""

    def __post_init__(self) -> None:
        if callable(self.strategy):
            if self.span is not None:
                raise ValueError(f"a sampler function takes no span, got {self.span}")
            return
        if self.strategy not in STRATEGIES:
            known = ", ".join(STRATEGIES)
            raise ValueError(f"strategy must be one of {known}, got {self.strategy!r}")
        name = _SPANS.get(self.strategy)
        if name is None:
            if self.span is not None:
                raise ValueError(f"strategy {self.strategy} takes no span, got {self.span}")
        elif self.span is None:
            raise ValueError(f"strategy {self.strategy} needs a span: its {name}")
        elif not 1 <= self.span < 2**63:
            raise ValueError(f"{name} must be at least 1 tick, got {self.span}")

    @property
    def native_strategy(self) -> Strategy:
        """`strategy`, if it is a name."""
        assert not callable(self.strategy)
        return self.strategy

    @classmethod
    def recent(cls) -> Sampler:
        """Select the latest neighbors."""
        return cls("recent")

    @classmethod
    def uniform(cls) -> Sampler:
        """Draw neighbors uniformly."""
        return cls("uniform")

    @classmethod
    def window(cls, *, width: int) -> Sampler:
        """Draw uniformly from the last `width` ticks, at least 1."""
        return cls("window", width)

    @classmethod
    def decayed(cls, *, half_life: int) -> Sampler:
        """Draw with a probability halved for each `half_life` ticks of age, at least 1."""
        return cls("decayed", half_life)

    @classmethod
    def of(cls, function: SamplerFunction) -> Sampler:
        """Sample by a Python function, on the CPU; much slower than the native strategies.

        Args:
            function: Called as `function(graph, nodes, t, before, since, k, key)` with the graph,
                the nodes, times and cut-offs of the queries, int64 `[Q]` each, the first log
                position of the horizon, the number of neighbors and the random key of the call.
                Returns int64 `[Q, k]`: for each query the log positions of distinct events of its
                node in any order, earlier than `t`, below `before` and from `since` on, and -1 for
                missing ones. It must be a pure function of its arguments, and
                is called from several threads concurrently. Nodes may be unknown or `NO_NODE`.

        Example:
            >>> def recent(graph, nodes, t, before, since, k, key):
            ...     return tg.sampling.recent_neighbors(graph, nodes, t, k, before, since=since).eid
            >>> sampler = tg.Sampler.of(recent)
            >>> nodes, t = torch.tensor([0]), torch.tensor([40])
            >>> tg.sampling.sample_neighbors(graph, sampler, nodes, t, k=1).nodes.tolist()
            [[3]]
        """
        return cls(function)
