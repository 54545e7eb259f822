"""Models, one paper a file, by name; each is imported when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from tgflow.model import TemporalModel

if TYPE_CHECKING:
    from tgflow.models.counts import SmoothedCounts, SmoothedCountsConfig
    from tgflow.models.craft import CRAFT, CRAFTConfig
    from tgflow.models.dygformer import DyGFormer, DyGFormerConfig
    from tgflow.models.edgebank import EdgeBank, EdgeBankConfig, EdgeBankTW, EdgeBankTWConfig
    from tgflow.models.graphmixer import GraphMixer, GraphMixerConfig
    from tgflow.models.jodie import JODIE, JODIEConfig
    from tgflow.models.poptrack import PopTrack, PopTrackConfig
    from tgflow.models.recency import Recency, RecencyConfig
    from tgflow.models.tgat import TGAT, TGATConfig
    from tgflow.models.tgn import TGN, TGNConfig
    from tgflow.models.tpnet import TPNet, TPNetConfig


class ModelEntry(NamedTuple):
    """Where a model is: a module of this package, and the class in it.

    The class is called as `model(config)`; the class of its settings is its `config_type`, named
    like the model with `Config` behind.
    """

    module: str
    name: str

    @property
    def model(self) -> Any:
        """The class of the model."""
        return getattr(import_module(f"{__name__}.{self.module}"), self.name)

    @property
    def config(self) -> Any:
        """The dataclass of its settings."""
        return self.model.config_type


MODELS = {
    "counts": ModelEntry("counts", "SmoothedCounts"),
    "craft": ModelEntry("craft", "CRAFT"),
    "dygformer": ModelEntry("dygformer", "DyGFormer"),
    "edgebank": ModelEntry("edgebank", "EdgeBank"),
    "edgebank-tw": ModelEntry("edgebank", "EdgeBankTW"),
    "graphmixer": ModelEntry("graphmixer", "GraphMixer"),
    "jodie": ModelEntry("jodie", "JODIE"),
    "poptrack": ModelEntry("poptrack", "PopTrack"),
    "recency": ModelEntry("recency", "Recency"),
    "tgat": ModelEntry("tgat", "TGAT"),
    "tgn": ModelEntry("tgn", "TGN"),
    "tpnet": ModelEntry("tpnet", "TPNet"),
}
"""The models by name, as a command line or a configuration file calls them."""

__all__ = [
    "CRAFT",
    "JODIE",
    "MODELS",
    "TGAT",
    "TGN",
    "CRAFTConfig",
    "DyGFormer",
    "DyGFormerConfig",
    "EdgeBank",
    "EdgeBankConfig",
    "EdgeBankTW",
    "EdgeBankTWConfig",
    "GraphMixer",
    "GraphMixerConfig",
    "JODIEConfig",
    "ModelEntry",
    "PopTrack",
    "PopTrackConfig",
    "Recency",
    "RecencyConfig",
    "SmoothedCounts",
    "SmoothedCountsConfig",
    "TGATConfig",
    "TGNConfig",
    "TPNet",
    "TPNetConfig",
    "TemporalModel",
]


def __getattr__(name: str) -> Any:
    for entry in MODELS.values():
        if name in (entry.name, f"{entry.name}Config"):
            return entry.model if name == entry.name else entry.config
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
