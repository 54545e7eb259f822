"""Comparisons of several models over one stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tgflow.base.lazy import lazy_names

if TYPE_CHECKING:
    from tgflow.report.compare.comparison import Comparison as Comparison
    from tgflow.report.compare.lineup import Entrant as Entrant
    from tgflow.report.compare.significance import compare_means as compare_means

__all__, __getattr__, __dir__ = lazy_names(__name__)
