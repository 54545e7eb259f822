"""What every room builds on: units, text, settings as annotated fields, metrics of scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tgflow.base.lazy import lazy_names

if TYPE_CHECKING:
    from tgflow.base import metrics as metrics
    from tgflow.base import peers as peers

__all__, __getattr__, __dir__ = lazy_names(__name__)
