"""Embeddings, scores and rankings of a model, also while it learns and its graph grows."""

from tgflow.inference.engine import Inference, Ranking

__all__ = ["Inference", "Ranking"]
