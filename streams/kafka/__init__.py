"""Kafka topics as streams of events, read and written. Needs `pip install 'tgflow[kafka]'`."""

from tgflow.streams.kafka.config import KafkaConfig
from tgflow.streams.kafka.dead_letters import DeadLetterTopic
from tgflow.streams.kafka.source import KafkaSource
from tgflow.streams.transports import Transport

TRANSPORT = Transport(KafkaConfig, KafkaSource, dead_letters=DeadLetterTopic)

__all__ = ["TRANSPORT", "DeadLetterTopic", "KafkaConfig", "KafkaSource"]
