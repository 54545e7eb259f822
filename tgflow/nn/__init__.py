"""The contract of models; layers, memories and decoders that they are built of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tgflow.base.lazy import lazy_names

if TYPE_CHECKING:
    from tgflow.nn import messages as messages
    from tgflow.nn.attention import AttentionConfig as AttentionConfig
    from tgflow.nn.attention import AttentionLayer as AttentionLayer
    from tgflow.nn.attention import AttentionStack as AttentionStack
    from tgflow.nn.attention import TemporalAttention as TemporalAttention
    from tgflow.nn.decoder import LinkDecoder as LinkDecoder
    from tgflow.nn.dropout import Dropout as Dropout
    from tgflow.nn.dropout import DropoutKeys as DropoutKeys
    from tgflow.nn.layers import CrossAttention as CrossAttention
    from tgflow.nn.layers import FeedForward as FeedForward
    from tgflow.nn.layers import MergeLayer as MergeLayer
    from tgflow.nn.layers import Mixer as Mixer
    from tgflow.nn.mail import Mail as Mail
    from tgflow.nn.mail import aggregate as aggregate
    from tgflow.nn.memory import MemoryRows as MemoryRows
    from tgflow.nn.memory import NodeMemory as NodeMemory
    from tgflow.nn.node_table import NodeTable as NodeTable
    from tgflow.nn.pairs import PairFeatures as PairFeatures
    from tgflow.nn.pairs import Pairs as Pairs
    from tgflow.nn.tokens import LogTimeEncoding as LogTimeEncoding
    from tgflow.nn.tokens import TimeEncoding as TimeEncoding
    from tgflow.nn.tokens import TokenProj as TokenProj
    from tgflow.nn.updater import MemoryUpdater as MemoryUpdater

__all__, __getattr__, __dir__ = lazy_names(__name__)
