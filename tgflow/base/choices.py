"""Choices of settings; imports neither torch nor pyarrow."""

from __future__ import annotations

from typing import Literal

Direction = Literal["undirected", "directed", "bipartite"]
"""Direction of edges: which ends of an event are neighbors."""
GraphPlacement = Literal["host", "disk"]
"""Placement of neighbors, log and counts: host memory, or files."""
Side = Literal["src", "dst"]
"""End of an event, where sources and destinations have separate id spaces."""
Strategy = Literal["recent", "uniform", "window", "decayed"]
"""Strategy of neighbor sampling; see `tgflow.graph.sampling.Sampler`."""
Visibility = Literal["event", "batch"]
"""Visibility of events to a query: all earlier ones, or those before its batch."""
NegativeKind = Literal["random", "historical", "inductive"]
"""Kinds of negatives to test with; historical and inductive ones replace the source too."""
ListKind = Literal["random", "source", "recent", "historical"]
"""Kinds of negatives to learn from; see `tgflow.plan.NegativeSampler`."""
CountOf = Literal[
    "pair", "reverse", "src", "dst", "src_as_dst", "dst_as_src", "transition", "transition_row",
    "window", "window_row", "continuation", "continuation_all", "src_new", "dst_new", "dst_first",
    "src_switch", "dst_switch", "own_transition", "covisit", "pair_relation", "src_relation",
    "dst_relation", "relation", "all",
]  # fmt: skip
"""Past events that are counted for a pair; see `tgflow.graph.counts.Count`."""
CountClock = Literal["seconds", "events", "source"]
"""Unit of the half-life of a count."""
PairGroup = Literal[
    "recency", "order", "frequency", "source", "destination", "arrivals", "covisits", "replies",
    "relations",
]  # fmt: skip
"""Groups of numbers of a pair's past; see `tgflow.nn.groups`."""
Loss = Literal["bce", "softmax", "softmax+bce", "bpr"]
"""Training losses; see `tgflow.train.losses`."""
MRR_OF_SOME = {
    "mrr_returns": "MRR, pair seen before",
    "mrr_first": "MRR, first meetings",
    "mrr_source": "MRR, source's last",
    "mrr_recent": "MRR, last of all",
}
"""Titles of the mean reciprocal ranks of some events, or among further negatives of some."""
METRIC_TITLES = {
    "ap": "AP",
    "auc": "AUC",
    "mrr": "MRR",
    "mrr_hist": "MRR, historical",
} | MRR_OF_SOME
"""Titles of the built-in metrics that summaries show, by their names in results."""
Precision = Literal["fp32", "tf32", "bf16"]
"""Precision of float32 matrix products."""
ContinualProtocol = Literal["prequential/1"]
OfflineProtocol = Literal["dyglib/1", "tgbl/1", "tgbn/1", "thgl/1", "tkgl/1", "tgbseq/1"]
"""Names of protocols of a continual and of an offline training; see `tgflow.train.protocols`."""
Preset = Literal["auto", "none", "repeat", "recommendation", "discrete", "sparse"]
"""Settings that a comparison adds to the given ones, by the kind of its stream."""
