"""Answers of a run: scores, rankings, embeddings and explanations, in Python and over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tgflow.base.lazy import lazy_names

if TYPE_CHECKING:
    from tgflow.serve.client import AnswerError as AnswerError
    from tgflow.serve.client import Client as Client
    from tgflow.serve.explain import Contribution as Contribution
    from tgflow.serve.explain import EventEffect as EventEffect
    from tgflow.serve.explain import Explainer as Explainer
    from tgflow.serve.explain import Explanation as Explanation
    from tgflow.serve.scored_pairs import ScoredPairs as ScoredPairs

__all__, __getattr__, __dir__ = lazy_names(__name__)
