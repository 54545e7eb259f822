"""`tgflow run`: a stream, a trainer and a run directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tgflow.base.lazy import lazy_names

if TYPE_CHECKING:
    from tgflow.run.node_features import NodeFeatures as NodeFeatures
    from tgflow.run.saved import Run as Run
    from tgflow.run.saved import open_run as open_run
    from tgflow.run.saved import save_run as save_run

__all__, __getattr__, __dir__ = lazy_names(__name__)
