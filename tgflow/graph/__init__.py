"""Events, ids, the log, block stores on CPU and GPU, feature tables, caches, and sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tgflow.base.lazy import lazy_names

if TYPE_CHECKING:
    from tgflow.graph import cache as cache
    from tgflow.graph import counts as counts
    from tgflow.graph import sampling as sampling
    from tgflow.graph import tables as tables
    from tgflow.graph.feature_scale import FeatureScale as FeatureScale
    from tgflow.graph.log import EventLog as EventLog
    from tgflow.graph.log import Horizon as Horizon
    from tgflow.graph.mutations import Mutation as Mutation
    from tgflow.graph.query import Neighbors as Neighbors
    from tgflow.graph.stats import GraphStats as GraphStats
    from tgflow.graph.stats import TierStats as TierStats
    from tgflow.graph.temporal_graph import TemporalGraph as TemporalGraph
    from tgflow.graph.temporal_graph import rebuild as rebuild

__all__, __getattr__, __dir__ = lazy_names(__name__)
