"""Choices of settings, in a module that imports neither torch nor pyarrow."""

from __future__ import annotations

from typing import Literal

Direction = Literal["undirected", "directed", "bipartite"]
"""How events become edges: who is whose neighbor."""
Side = Literal["src", "dst"]
"""Which end of its events a node is, where sources and destinations have ids of their own."""
Strategy = Literal["recent", "uniform", "window", "decayed"]
"""How neighbors are sampled; see `tgflow.sampling.Sampler`."""
Visibility = Literal["event", "batch"]
"""Visibility of events to a query: all earlier ones, or those before its batch."""
NegativeKind = Literal["random", "historical", "inductive"]
"""Where the destinations of negatives are drawn from."""
CountOf = Literal[
    "pair",
    "reverse",
    "src",
    "dst",
    "src_as_dst",
    "dst_as_src",
    "transition",
    "transition_row",
    "window",
    "window_row",
    "continuation",
    "continuation_all",
    "all",
]
"""Past events that are counted for a pair; see `tgflow.counts.Count`."""
CountClock = Literal["seconds", "events"]
"""Unit of the half-life of a count."""
Loss = Literal["bce", "softmax", "bpr"]
"""Training losses; see `tgflow.train.losses`."""
METRIC_TITLES = {"ap": "AP", "auc": "AUC", "mrr": "MRR", "mrr_hist": "MRR, historical"}
"""Titles of the built-in metrics that summaries show, by their names in results."""
Precision = Literal["fp32", "tf32"]
"""How a GPU multiplies matrices of float32."""
Injection = Literal["structural", "temporal"]
"""How events are made anomalies: by another destination, or by another time."""
Preset = Literal["auto", "none", "repeat", "recommendation", "discrete", "sparse"]
"""Which settings a comparison adds to those that are given, by the kind of its stream."""
