"""Trainers: continual over a stream, and offline over a fixed log by the published protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tgflow.base.lazy import lazy_names

if TYPE_CHECKING:
    from tgflow.train import tasks as tasks
    from tgflow.train.config import ContinualConfig as ContinualConfig
    from tgflow.train.config import OfflineConfig as OfflineConfig
    from tgflow.train.config import Reuse as Reuse
    from tgflow.train.continual import ContinualTrainer as ContinualTrainer
    from tgflow.train.finite import TrainingDiverged as TrainingDiverged
    from tgflow.train.inference import Inference as Inference
    from tgflow.train.inference import Ranking as Ranking
    from tgflow.train.observe import BatchRecord as BatchRecord
    from tgflow.train.observe import Callback as Callback
    from tgflow.train.observe import EpochRecord as EpochRecord
    from tgflow.train.observe import StepRecord as StepRecord
    from tgflow.train.offline import OfflineTrainer as OfflineTrainer

__all__, __getattr__, __dir__ = lazy_names(__name__)
