"""Trainers: continual over a stream, and offline over a fixed log by the published protocol."""

from typing import TYPE_CHECKING

from tgflow.lazy import lazy_names

if TYPE_CHECKING:
    from tgflow.train.config import ContinualConfig, OfflineConfig
    from tgflow.train.continual import ContinualTrainer
    from tgflow.train.learner import TrainingDiverged
    from tgflow.train.observe import BatchRecord, Callback, EpochRecord, StepRecord
    from tgflow.train.offline import OfflineTrainer

__getattr__ = lazy_names(
    __name__,
    {
        "BatchRecord": "observe",
        "Callback": "observe",
        "ContinualConfig": "config",
        "ContinualTrainer": "continual",
        "EpochRecord": "observe",
        "OfflineConfig": "config",
        "OfflineTrainer": "offline",
        "StepRecord": "observe",
        "TrainingDiverged": "learner",
    },
)

__all__ = [
    "BatchRecord",
    "Callback",
    "ContinualConfig",
    "ContinualTrainer",
    "EpochRecord",
    "OfflineConfig",
    "OfflineTrainer",
    "StepRecord",
    "TrainingDiverged",
]
