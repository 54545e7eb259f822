"""What the core is asked for: a strategy and its draws, and the event types that count."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import get_args

import torch
from torch import Tensor

from tgflow import _core
from tgflow.choices import Strategy

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
_SPANS = {"window": "width", "decayed": "half_life"}
_NATIVE = {name: getattr(_core.Strategy, name) for name in STRATEGIES}
_NUM_TYPES = 2**16
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Sampler:
    """Which of the neighbors that a query sees are taken; see the function `STRATEGY_neighbors`.

    Made by `Sampler.recent()`, `.uniform()`, `.window(width=)` and `.decayed(half_life=)`, or from
    the strategy's name and a span, as settings have them.

    Raises:
        ValueError: If there is no such strategy, or `span` is missing, too small or not asked for.
    """

    strategy: Strategy
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

    def spec(self, key: int, types: Tensor | None) -> _core.Sampler:
        """Return the core's form; `types` are bits as of `type_bits`, which must stay alive."""
        if not 0 <= key < 2**64:
            raise ValueError(f"key must be in [0, 2**64), got {key}")
        bits = 0 if types is None else types.data_ptr()
        return _core.Sampler(_NATIVE[self.strategy], key, self.span or 1, bits)


def type_bits(types: Collection[int], device: torch.device = _CPU) -> Tensor:
    """Return a bit per event type, whether it is one of `types`: int64 `[1024]`, not to be written.

    Kept for the next call: only the first one on a CUDA device copies.

    Raises:
        ValueError: If a type is not in [0, 65535].
    """
    return _type_bits(tuple(types), device)


@lru_cache(maxsize=64)
def _type_bits(types: tuple[int, ...], device: torch.device) -> Tensor:
    bits = 0
    for kept in types:
        if not 0 <= kept < _NUM_TYPES:
            raise ValueError(f"event types must be in [0, {_NUM_TYPES - 1}], got {kept}")
        bits |= 1 << kept
    words = bytearray(bits.to_bytes(_NUM_TYPES // 8, "little"))
    return torch.frombuffer(words, dtype=torch.int64).to(device)
