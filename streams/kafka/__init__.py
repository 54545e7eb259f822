"""Kafka topics as streams of events, read and written. Needs `pip install 'tgflow[kafka]'`."""

from tgflow.streams.kafka.config import KafkaConfig
from tgflow.streams.kafka.source import KafkaSource

__all__ = ["KafkaConfig", "KafkaSource"]
