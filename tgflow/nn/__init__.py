"""The parts that models are built of."""

from tgflow.nn.attention import AttentionLayer, TemporalAttention
from tgflow.nn.cross_attention import CrossAttention
from tgflow.nn.decoder import LinkDecoder
from tgflow.nn.dropout import Dropout, DropoutKeys
from tgflow.nn.layers import MergeLayer
from tgflow.nn.memory import NodeMemory
from tgflow.nn.memory_rows import MemoryRows
from tgflow.nn.messages import Mail, aggregate
from tgflow.nn.mixer import FeedForward, Mixer
from tgflow.nn.node_table import NodeTable
from tgflow.nn.pair_features import PairFeatures
from tgflow.nn.pairs import Pairs
from tgflow.nn.stack import AttentionConfig, AttentionStack
from tgflow.nn.time_encoding import LogTimeEncoding, TimeEncoding
from tgflow.nn.tokens import TokenProj
from tgflow.nn.updater import MemoryUpdater

__all__ = [
    "AttentionConfig",
    "AttentionLayer",
    "AttentionStack",
    "CrossAttention",
    "Dropout",
    "DropoutKeys",
    "FeedForward",
    "LinkDecoder",
    "LogTimeEncoding",
    "Mail",
    "MemoryRows",
    "MemoryUpdater",
    "MergeLayer",
    "Mixer",
    "NodeMemory",
    "NodeTable",
    "PairFeatures",
    "Pairs",
    "TemporalAttention",
    "TimeEncoding",
    "TokenProj",
    "aggregate",
]
