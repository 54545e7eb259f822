"""Ranks that learn together: joining and messages, over `torch.distributed`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tgflow.base.lazy import lazy_names

if TYPE_CHECKING:
    from tgflow.ranks.join import join as join
    from tgflow.ranks.memory import ShardedMemory as ShardedMemory

__all__, __getattr__, __dir__ = lazy_names(__name__)
