"""What the registry of transports knows of Kafka."""

from tgflow.streams.kafka.config import KafkaConfig
from tgflow.streams.kafka.dead_letters import DeadLetterTopic
from tgflow.streams.kafka.publish import Publisher, Topic
from tgflow.streams.kafka.source import KafkaSource
from tgflow.streams.transports import Transport

TRANSPORT = Transport(
    KafkaConfig, KafkaSource, dead_letters=DeadLetterTopic, publish=Publisher, topic=Topic
)
