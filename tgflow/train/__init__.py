"""Trainers: continual over a stream, and offline over a fixed log by the published protocol."""

from tgflow.train.continual import ContinualConfig, ContinualTrainer
from tgflow.train.learner import TrainingDiverged
from tgflow.train.observe import BatchRecord, Callback, EpochRecord, StepRecord
from tgflow.train.offline import OfflineConfig, OfflineTrainer

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
