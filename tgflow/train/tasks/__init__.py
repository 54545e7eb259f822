"""Labels of events and nodes as targets of learning.

A task has targets (the label of each event, and the position from which it may be seen), a decoder,
a loss, metrics and baselines. The config of a trainer has a `TaskConfig`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tgflow.base.lazy import lazy_names

if TYPE_CHECKING:
    from tgflow.train.tasks.config import TaskConfig as TaskConfig
    from tgflow.train.tasks.labels import LabelTask as LabelTask

__all__, __getattr__, __dir__ = lazy_names(__name__)
