"""tgflow: continual learning on temporal graphs.

Everything public is here, and is imported when it is first used: `import tgflow` itself is quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tgflow.lazy import lazy_names

if TYPE_CHECKING:
    from tgflow._native import num_threads, set_num_threads
    from tgflow.batch import Batch
    from tgflow.cache import CachedTable, ScheduleMismatch, cached
    from tgflow.checkpoint import Checkpoint, load, save
    from tgflow.events import NO_NODE, EventBatch
    from tgflow.graph import TemporalGraph
    from tgflow.ids import NodeIds
    from tgflow.log import EventLog
    from tgflow.model import Scores, TemporalModel
    from tgflow.models import TGAT, TGN, TGATConfig, TGNConfig
    from tgflow.plan import ExperienceReplay, Loader, NegativeSampler, Plan
    from tgflow.sampling import (
        Hops,
        Neighbors,
        Sampler,
        decayed_neighbors,
        recent_neighbors,
        sample_hops,
        sample_neighbors,
        uniform_neighbors,
        window_neighbors,
    )
    from tgflow.sampling.to_dgl import to_dgl
    from tgflow.sampling.to_pyg import to_pyg
    from tgflow.streams import Source, open_stream, playback
    from tgflow.tables import FeatureTable
    from tgflow.train.config import ContinualConfig, OfflineConfig
    from tgflow.train.continual import ContinualTrainer
    from tgflow.train.observe import Callback
    from tgflow.train.offline import OfflineTrainer

_HOME = {
    "Batch": "batch",
    "CachedTable": "cache",
    "Callback": "train.observe",
    "Checkpoint": "checkpoint",
    "ContinualConfig": "train.config",
    "ContinualTrainer": "train.continual",
    "EventBatch": "events",
    "EventLog": "log",
    "ExperienceReplay": "plan",
    "FeatureTable": "tables",
    "Hops": "sampling",
    "Loader": "plan",
    "NO_NODE": "events",
    "NegativeSampler": "plan",
    "Neighbors": "sampling",
    "NodeIds": "ids",
    "OfflineConfig": "train.config",
    "OfflineTrainer": "train.offline",
    "Plan": "plan",
    "Sampler": "sampling",
    "ScheduleMismatch": "cache",
    "Scores": "model",
    "Source": "streams",
    "TGAT": "models",
    "TGATConfig": "models",
    "TGN": "models",
    "TGNConfig": "models",
    "TemporalGraph": "graph",
    "TemporalModel": "model",
    "cached": "cache",
    "decayed_neighbors": "sampling",
    "load": "checkpoint",
    "num_threads": "_native",
    "open_stream": "streams",
    "playback": "streams",
    "recent_neighbors": "sampling",
    "sample_hops": "sampling",
    "sample_neighbors": "sampling",
    "save": "checkpoint",
    "set_num_threads": "_native",
    "to_dgl": "sampling.to_dgl",
    "to_pyg": "sampling.to_pyg",
    "uniform_neighbors": "sampling",
    "window_neighbors": "sampling",
}
"""The module of tgflow that each public name lives in."""

__all__ = [
    "NO_NODE",
    "TGAT",
    "TGN",
    "Batch",
    "CachedTable",
    "Callback",
    "Checkpoint",
    "ContinualConfig",
    "ContinualTrainer",
    "EventBatch",
    "EventLog",
    "ExperienceReplay",
    "FeatureTable",
    "Hops",
    "Loader",
    "NegativeSampler",
    "Neighbors",
    "NodeIds",
    "OfflineConfig",
    "OfflineTrainer",
    "Plan",
    "Sampler",
    "ScheduleMismatch",
    "Scores",
    "Source",
    "TGATConfig",
    "TGNConfig",
    "TemporalGraph",
    "TemporalModel",
    "cached",
    "decayed_neighbors",
    "load",
    "num_threads",
    "open_stream",
    "playback",
    "recent_neighbors",
    "sample_hops",
    "sample_neighbors",
    "save",
    "set_num_threads",
    "to_dgl",
    "to_pyg",
    "uniform_neighbors",
    "window_neighbors",
]


__getattr__ = lazy_names(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
