"""Settings that models are published with, by the data sets of the DyGLib benchmark.

What a paper or its code says of a data set alone: what is the same for all is the model's default,
and what nobody states is left to it as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

ModelSettings = Mapping[str, Mapping[str, Any]]
"""By model, what is set of it."""

_ALL_EXTRAS = {"window": True, "recency": True, "scales": True}


def _published(
    decay: float,
    tokens: tuple[int, int] = (32, 1),
    *,
    dygformer_dropout: float | None = None,
    walk_dim: int | None = None,
    mixer_neighbors: int | None = None,
    mixer_dropout: float | None = None,
    counts: Mapping[str, Any] | None = None,
) -> ModelSettings:
    """Return the settings of a data set.

    Args:
        decay: Of TPNet's walks, per second.
        tokens: DyGFormer's length of sequences, and tokens of a patch.
        dygformer_dropout: DyGFormer's.
        walk_dim: Width of TPNet's projections: 10 floor(ln(2 E)) of E events, at most the nodes.
        mixer_neighbors: GraphMixer's.
        mixer_dropout: GraphMixer's.
        counts: What the count model reads beyond its reference set.
    """
    length, patch = tokens
    models = {
        "tpnet": {"walk_decay": decay, "walk_dim": walk_dim},
        "dygformer": {"length": length, "patch": patch, "dropout": dygformer_dropout},
        "graphmixer": {"neighbors": mixer_neighbors, "dropout": mixer_dropout},
        "counts": dict(counts or {}),
    }
    stated = {
        name: {key: value for key, value in settings.items() if value is not None}
        for name, settings in models.items()
    }
    return {name: settings for name, settings in stated.items() if settings}


PUBLISHED: Mapping[str, ModelSettings] = MappingProxyType(
    {
        "dyglib:wikipedia": _published(
            1e-6, walk_dim=120, mixer_neighbors=30, mixer_dropout=0.5, counts=_ALL_EXTRAS
        ),
        "dyglib:reddit": _published(1e-6, (64, 2), mixer_neighbors=10, mixer_dropout=0.5),
        "dyglib:mooc": _published(1e-5, (256, 8), mixer_dropout=0.4),
        "dyglib:lastfm": _published(1e-7, (512, 16), mixer_neighbors=10, counts=_ALL_EXTRAS),
        "dyglib:enron": _published(
            1e-6, (256, 8), dygformer_dropout=0.0, walk_dim=120, mixer_dropout=0.5,
            counts=_ALL_EXTRAS,
        ),
        "dyglib:socialevo": _published(1e-6),
        "dyglib:uci": _published(1e-7, walk_dim=110, mixer_dropout=0.4, counts=_ALL_EXTRAS),
        "dyglib:flights": _published(1e-6, (256, 8)),
        "dyglib:canparl": _published(1e-5, (2048, 64)),
        "dyglib:uslegis": _published(1e-6, (256, 8), mixer_dropout=0.4),
        "dyglib:untrade": _published(1e-7, (256, 8)),
        "dyglib:unvote": _published(1e-5, (128, 4)),
        "dyglib:contacts": _published(1e-4),
    }
)  # fmt: skip
"""By preset, as `tgflow compare --preset` calls it."""
