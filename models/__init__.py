"""Models, one paper per file, by name; each is imported at first use.

A model takes its settings as one config, as fields of it, or both: `TGN(memory_dim=32)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from tgflow.base.lazy import lazy_names

if TYPE_CHECKING:
    from tgflow.models.counts import SmoothedCounts as SmoothedCounts
    from tgflow.models.counts import SmoothedCountsConfig as SmoothedCountsConfig
    from tgflow.models.craft import CRAFT as CRAFT
    from tgflow.models.craft import CRAFTConfig as CRAFTConfig
    from tgflow.models.dygformer import DyGFormer as DyGFormer
    from tgflow.models.dygformer import DyGFormerConfig as DyGFormerConfig
    from tgflow.models.edgebank import EdgeBank as EdgeBank
    from tgflow.models.edgebank import EdgeBankConfig as EdgeBankConfig
    from tgflow.models.edgebank import EdgeBankTW as EdgeBankTW
    from tgflow.models.edgebank import EdgeBankTWConfig as EdgeBankTWConfig
    from tgflow.models.graphmixer import GraphMixer as GraphMixer
    from tgflow.models.graphmixer import GraphMixerConfig as GraphMixerConfig
    from tgflow.models.jodie import JODIE as JODIE
    from tgflow.models.jodie import JODIEConfig as JODIEConfig
    from tgflow.models.poptrack import PopTrack as PopTrack
    from tgflow.models.poptrack import PopTrackConfig as PopTrackConfig
    from tgflow.models.recency import Recency as Recency
    from tgflow.models.recency import RecencyConfig as RecencyConfig
    from tgflow.models.recurrency import Recurrency as Recurrency
    from tgflow.models.recurrency import RecurrencyConfig as RecurrencyConfig
    from tgflow.models.tgat import TGAT as TGAT
    from tgflow.models.tgat import TGATConfig as TGATConfig
    from tgflow.models.tgn import TGN as TGN
    from tgflow.models.tgn import TGNConfig as TGNConfig
    from tgflow.models.tpnet import TPNet as TPNet
    from tgflow.models.tpnet import TPNetConfig as TPNetConfig
    from tgflow.nn.model import TemporalModel as TemporalModel


class ModelEntry(NamedTuple):
    """A model by name: its module in this package, its class, and the settings of that name.

    The class is called as `model(config)` or `model(name=value, ...)`; the class of its settings is
    its `config_type`, named like the model with `Config` behind.
    """

    module: str
    class_name: str
    settings: Mapping[str, Any] = {}
    """Settings fixed by the name; they cannot be overridden."""

    @property
    def model(self) -> Any:
        """The class of the model."""
        return getattr(import_module(f"{__name__}.{self.module}"), self.class_name)

    @property
    def config(self) -> Any:
        """The dataclass of its settings."""
        return self.model.config_type


_WITHOUT_PAIRS = {"pair_features": ()}
MODELS = {
    "counts": ModelEntry("counts", "SmoothedCounts"),
    "craft": ModelEntry("craft", "CRAFT"),
    "dygformer": ModelEntry("dygformer", "DyGFormer"),
    "edgebank": ModelEntry("edgebank", "EdgeBank"),
    "edgebank-tw": ModelEntry("edgebank", "EdgeBankTW"),
    "graphmixer": ModelEntry("graphmixer", "GraphMixer", _WITHOUT_PAIRS),
    "graphmixer+pairs": ModelEntry("graphmixer", "GraphMixer"),
    "jodie": ModelEntry("jodie", "JODIE", _WITHOUT_PAIRS),
    "jodie+pairs": ModelEntry("jodie", "JODIE"),
    "poptrack": ModelEntry("poptrack", "PopTrack"),
    "recency": ModelEntry("recency", "Recency"),
    "recurrency": ModelEntry("recurrency", "Recurrency"),
    "tgat": ModelEntry("tgat", "TGAT", _WITHOUT_PAIRS),
    "tgat+pairs": ModelEntry("tgat", "TGAT"),
    "tgn": ModelEntry("tgn", "TGN", _WITHOUT_PAIRS),
    "tgn+pairs": ModelEntry("tgn", "TGN"),
    "tpnet": ModelEntry("tpnet", "TPNet"),
}
"""The models by name, as in the command line and configuration files. NAME is the paper's model;
NAME+pairs also reads the exact history of each pair, and is the default of its class."""


def name_of(model: TemporalModel) -> str:
    """Return the name of a model in `MODELS`, or else the name of its class.

    Example:
        >>> from tgflow.models import name_of
        >>> name_of(tg.TGN()), name_of(tg.TGN(pair_features=()))
        ('tgn+pairs', 'tgn')
    """
    for name, entry in MODELS.items():
        # compare names first: `entry.model` imports the module
        is_of_class = type(model).__name__ == entry.class_name and type(model) is entry.model
        config = getattr(model, "config", None)
        if is_of_class and all(getattr(config, k) == v for k, v in entry.settings.items()):
            return name
    return type(model).__name__


__all__, __getattr__, __dir__ = lazy_names(__name__)
__all__ += ["MODELS", "ModelEntry", "name_of"]
