"""HTTP server and client for scores, rankings and embeddings of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tgflow.base.lazy import lazy_names

if TYPE_CHECKING:
    from tgflow.serve.client import AnswerError as AnswerError
    from tgflow.serve.client import Client as Client
    from tgflow.serve.scored_pairs import ScoredPairs as ScoredPairs

__all__, __getattr__, __dir__ = lazy_names(__name__)
