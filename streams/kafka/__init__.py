"""Kafka topics as streams of events; needs `pip install 'tgflow-learn[kafka]'`."""

from typing import TYPE_CHECKING

from tgflow.lazy import lazy_names

if TYPE_CHECKING:
    from tgflow.streams.kafka.config import KafkaConfig
    from tgflow.streams.kafka.dead_letters import DeadLetterTopic
    from tgflow.streams.kafka.source import KafkaSource
    from tgflow.streams.kafka.transport import TRANSPORT

__getattr__ = lazy_names(
    __name__,
    {
        "TRANSPORT": "transport",
        "DeadLetterTopic": "dead_letters",
        "KafkaConfig": "config",
        "KafkaSource": "source",
    },
)

__all__ = ["TRANSPORT", "DeadLetterTopic", "KafkaConfig", "KafkaSource"]
