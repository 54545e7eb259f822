"""Growing temporal graphs: the event log, block stores on CPU and GPU, and features."""

from tgflow.graph.feature_scale import FeatureScale
from tgflow.graph.log import EventLog
from tgflow.graph.mutations import Mutation
from tgflow.graph.query import Neighbors
from tgflow.graph.stats import GraphStats, TierStats
from tgflow.graph.temporal_graph import TemporalGraph, rebuild

__all__ = [
    "EventLog",
    "FeatureScale",
    "GraphStats",
    "Mutation",
    "Neighbors",
    "TemporalGraph",
    "TierStats",
    "rebuild",
]
