"""Layers, memories and decoders of models."""

from tgflow.nn.attention import AttentionConfig, AttentionLayer, AttentionStack, TemporalAttention
from tgflow.nn.decoder import LinkDecoder
from tgflow.nn.dropout import Dropout, DropoutKeys
from tgflow.nn.layers import CrossAttention, FeedForward, MergeLayer, Mixer
from tgflow.nn.mail import Mail, aggregate
from tgflow.nn.memory import MemoryRows, NodeMemory
from tgflow.nn.node_table import NodeTable
from tgflow.nn.pairs import PairFeatures, Pairs
from tgflow.nn.tokens import LogTimeEncoding, TimeEncoding, TokenProj
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
