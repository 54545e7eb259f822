"""Checks of a model's contract, and a mock Kafka broker for streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tgflow.base.lazy import lazy_names

if TYPE_CHECKING:
    from tgflow.testing.check_model import ContractViolation as ContractViolation
    from tgflow.testing.check_model import check_model as check_model

__all__, __getattr__, __dir__ = lazy_names(__name__)
