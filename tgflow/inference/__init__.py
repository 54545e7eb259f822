"""Embeddings, scores and rankings of a model, asked while its graph grows and while it learns."""

from tgflow.inference.engine import Inference
from tgflow.inference.ranking import Ranking

__all__ = ["Inference", "Ranking"]
