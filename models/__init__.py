"""Models, one paper a file, by name."""

from __future__ import annotations

from typing import NamedTuple

from tgflow.model import TemporalModel
from tgflow.models.tgat import TGAT, TGATConfig
from tgflow.models.tgn import TGN, TGNConfig


class ModelEntry(NamedTuple):
    """A model's class, called as `model(config)`, and the class of its settings."""

    model: type[TGN] | type[TGAT]
    config: type[TGNConfig] | type[TGATConfig]


MODELS = {"tgat": ModelEntry(TGAT, TGATConfig), "tgn": ModelEntry(TGN, TGNConfig)}
"""The models by name, as a command line or a configuration file calls them."""


__all__ = ["MODELS", "TGAT", "TGN", "ModelEntry", "TGATConfig", "TGNConfig", "TemporalModel"]
