"""Entrants of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from tgflow.base.describe import described
from tgflow.nn.model import TemporalModel, check_is_model

LEARNING = frozenset({"learning_rate", "grad_clip", "loss"})
"""Trainer settings in which entrants may differ; all others affect the shared batches."""


@described
@dataclass(frozen=True, slots=True, eq=False)
class Entrant:
    """A model with one seed.

    Args:
        label: Name of the model; entrants that share it differ in the seed only.
        seed: Seed of its parameters and of dropout.
        model: Model with its initial parameters; not shared with other entrants.
        learning: Its own settings, from those in `LEARNING`.
        frozen_of: For a frozen copy, the label of the original: an entrant of the same seed. Its
            own model is built alike, and takes over the original's state.
        frozen_at: Log position from which on it stops learning; its memory is still updated.

    Raises:
        ValueError: If `learning` has another setting, or `frozen_of` or `frozen_at` is missing.

    Example:
        >>> tg.compare.Entrant("tgn", seed=0, model=tg.TGN(), learning={"learning_rate": 1e-4}).key
        'tgn/0'
    """

    label: str
    seed: int
    model: TemporalModel
    learning: Mapping[str, Any] = field(default_factory=dict)
    frozen_of: str | None = None
    frozen_at: int | None = None

    def __post_init__(self) -> None:
        if unknown := set(self.learning) - LEARNING:
            text = f"{self.label}: entrants may differ in {', '.join(sorted(LEARNING))}, got "
            raise ValueError(f"{text}{', '.join(sorted(unknown))}")
        if (self.frozen_of is None) != (self.frozen_at is None):
            raise ValueError(f"{self.label}: frozen_of and frozen_at go together")

    @property
    def key(self) -> str:
        """Label and seed, such as tgn/0."""
        return f"{self.label}/{self.seed}"

    def facts(self) -> dict[str, Any]:
        """Return its part of the summary of a comparison, JSON-serializable."""
        parameters = [*self.model.parameters()]
        names = ("label", "seed", "frozen_of", "frozen_at")
        return {name: getattr(self, name) for name in names} | {
            "num_parameters": sum(each.numel() for each in parameters),
            "bytes": {"parameters": sum(each.nbytes for each in parameters)},
            "learning": dict(self.learning),
        }


Lineup: TypeAlias = Sequence[Entrant]


def check_lineup(lineup: Lineup) -> None:
    """Raise ValueError, or TypeError of what is no model, if a line-up cannot be compared."""
    keys = [entrant.key for entrant in lineup]
    if not keys:
        raise ValueError("a comparison needs at least one model, got none")
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"{twice} appears twice; give one of them another label")
    learning = {entrant.key for entrant in lineup if entrant.frozen_of is None}
    for entrant in lineup:
        check_is_model(entrant.model)
        if entrant.frozen_of is not None and f"{entrant.frozen_of}/{entrant.seed}" not in learning:
            raise ValueError(f"{entrant.key} is a copy of {entrant.frozen_of}, which is missing")
    if len(places := _devices(lineup)) > 1:
        raise ValueError(f"models must be on one device, got {', '.join(map(str, places))}")


def device_of_lineup(lineup: Lineup) -> torch.device:
    """Return the device of the models; those without parameters use that of the others."""
    return next(iter(_devices(lineup)), torch.device("cpu"))


def _devices(lineup: Lineup) -> set[torch.device]:
    return {p.device for entrant in lineup for p in entrant.model.parameters()}
