"""Embeddings, scores, rankings and explanations of a model, also while it learns."""

from tgflow.inference.engine import Inference, Ranking
from tgflow.inference.explain import Contribution, EventEffect, Explainer, Explanation

__all__ = [
    "Contribution",
    "EventEffect",
    "Explainer",
    "Explanation",
    "Inference",
    "Ranking",
]
