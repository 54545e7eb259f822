"""Kafka topics as streams of events; needs the extra `kafka`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tgflow.base.lazy import lazy_names

if TYPE_CHECKING:
    from tgflow.streams.kafka.config import KafkaConfig as KafkaConfig
    from tgflow.streams.kafka.source import TRANSPORT as TRANSPORT
    from tgflow.streams.kafka.source import KafkaSource as KafkaSource

__all__, __getattr__, __dir__ = lazy_names(__name__)
