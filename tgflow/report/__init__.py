"""Presentation: pages, displays, tables and texts, loggers, comparisons of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tgflow.base.lazy import lazy_names

if TYPE_CHECKING:
    from tgflow.report import callbacks as callbacks
    from tgflow.report import compare as compare

__all__, __getattr__, __dir__ = lazy_names(__name__)
