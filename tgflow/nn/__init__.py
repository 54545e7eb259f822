"""The parts that models are built of."""

from tgflow.nn.attention import AttentionLayer, TemporalAttention
from tgflow.nn.decoder import LinkDecoder
from tgflow.nn.dropout import Dropout, DropoutKeys
from tgflow.nn.layers import MergeLayer
from tgflow.nn.memory import NodeMemory
from tgflow.nn.memory_rows import MemoryRows
from tgflow.nn.messages import Mail, aggregate
from tgflow.nn.stack import AttentionConfig, AttentionStack
from tgflow.nn.time_encoding import TimeEncoding
from tgflow.nn.updater import MemoryUpdater

__all__ = [
    "AttentionConfig",
    "AttentionLayer",
    "AttentionStack",
    "Dropout",
    "DropoutKeys",
    "LinkDecoder",
    "Mail",
    "MemoryRows",
    "MemoryUpdater",
    "MergeLayer",
    "NodeMemory",
    "TemporalAttention",
    "TimeEncoding",
    "aggregate",
]
