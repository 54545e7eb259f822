"""Multi-head attention over temporal neighbors: the operation, a layer and a stack of layers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from annotated_types import Ge, Le, Lt
from torch import Tensor, nn

from tgflow.base.choices import PairGroup
from tgflow.graph.batch import Block
from tgflow.graph.events import NUM_RELATIONS
from tgflow.nn._native import Attend, attend_projected, can_attend, gather_rows, is_fused
from tgflow.nn.dropout import Dropout
from tgflow.nn.groups import PAIR_GROUPS
from tgflow.nn.layers import MergeLayer, init_split
from tgflow.nn.linear import Linear, product
from tgflow.nn.model import FeatureConfig, width_error
from tgflow.nn.tokens import TimeEncoding

MASKED = -1e30
"""The score of a missing neighbor: finite, so that a row of padding has no NaN."""


class Attended(NamedTuple):
    """Attention results of `N` targets over their neighbors, per head."""

    inputs: Tensor
    """float32 `[H, N, D]`: weighted sums of the inputs [h | edge_x | time], or zeros."""
    weight: Tensor
    """float32 `[H, N]`: sums of weights: 1 before dropout, 0 for a target without neighbors."""


def attend(
    query: Tensor, below: Tensor | None, block: Block, time: TimeEncoding, keep: Tensor | None
) -> Attended:
    """Return the softmax-weighted sums of each target's neighbors' inputs.

    In float32 one fused pass without a gather: by the native core on the CPU, by kernels on a GPU,
    without synchronization and with deterministic gradients.
    """
    if not can_attend(query, block):
        return attend_plain(query, below, block, time, keep)
    below = None if below is None else below.contiguous()
    arguments = (query.contiguous(), below, time.frequency, keep, block)
    return Attended(*Attend.apply(*arguments))  # type: ignore[no-untyped-call]


def attend_plain(
    query: Tensor, below: Tensor | None, block: Block, time: TimeEncoding, keep: Tensor | None
) -> Attended:
    """Do the same in torch, for any device and type."""
    parts = list(_parts(below, block, time))
    query = query.expand(-1, len(block.target), -1).transpose(0, 1)
    queries = torch.split(query, [part.shape[-1] for part in parts], dim=-1)
    scores = torch.stack([q @ x.transpose(1, 2) for q, x in zip(queries, parts, strict=True)]).sum(
        0
    )
    missing = ~block.mask.unsqueeze(1)
    weight = torch.softmax(scores.masked_fill(missing, MASKED), dim=-1).masked_fill(missing, 0.0)
    if keep is not None:
        weight = weight * keep.transpose(0, 1).to(weight.dtype)
    inputs = torch.cat([weight @ x for x in parts], dim=-1)
    return Attended(inputs.transpose(0, 1), weight.sum(-1).t())


def _parts(below: Tensor | None, block: Block, time: TimeEncoding) -> Iterator[Tensor]:
    """Yield the parts of the neighbors' inputs, each `[N, k, width]`."""
    for table, row in ((below, block.neighbor), (block.edge_table, block.edge_row)):
        if table is not None and row is not None:
            yield table.index_select(0, row.flatten()).view(*row.shape, table.shape[1])
    yield time(block.dt)


class TemporalAttention(nn.Module):
    """Eqs. 5-7 of arXiv:2002.07962, reordered so that no neighbor is projected.

    With x_j = [h_j | edge_x_j | time(dt_j)], a score q . (W_k x_j + b_k) is (W_k^T q) . x_j plus a
    constant over a target's neighbors, which the softmax cancels; and sum_j a_j (W_v x_j + b_v) is
    W_v (sum_j a_j x_j) + (sum_j a_j) b_v. Two products per target replace two per neighbor, with
    the same result. A target without neighbors gets zeros.

    Args:
        time: The time encoding, which layers may share.
        h_dim: Width of the inputs of targets and neighbors; 0 if nodes have none.
        edge_x_dim: Width of the edge features; 0 if there are none.
        dim: Width of the result, all heads together.
        heads: Number of heads; divides `dim`.
        dropout: Share of the weights dropped in training.
    """

    def __init__(
        self,
        time: TimeEncoding,
        *,
        h_dim: int,
        edge_x_dim: int,
        dim: int,
        heads: int,
        dropout: float,
    ) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"heads must divide dim, got {heads} heads and dim {dim}")
        self.h_dim, self.edge_x_dim = h_dim, edge_x_dim
        self.heads = heads
        self.dropout = Dropout(dropout)
        self.time = time
        self.query = Linear(h_dim, dim, bias=False) if h_dim else None
        self.query_time = Linear(time.dim, dim)
        self.key = Linear(h_dim + edge_x_dim + time.dim, dim, bias=False)
        self.value = Linear(h_dim + edge_x_dim + time.dim, dim)
        init_split(self.query_time, self.query)
        for layer in (self.key, self.value):
            nn.init.xavier_uniform_(layer.weight)
        for layer in (self.query_time, self.value):
            nn.init.zeros_(layer.bias)

    def forward(self, target: Tensor | None, below: Tensor | None, block: Block) -> Tensor:
        """Return the attention output of each target, `[N, dim]`.

        Args:
            target: Inputs of the targets, float32 `[N, h_dim]`, or None if `h_dim` is 0.
            below: Inputs of the frontier below, float32 `[F, h_dim]`, or None if `h_dim` is 0.
            block: The neighbors.

        Raises:
            ValueError: If `below` or the block's edge features have another width.
        """
        self.check_widths(below, block)
        keep = self.dropout.factors(self.heads, *block.dt.shape)
        q = self.queries(target)
        q = product(q, self.key.weight.view(self.heads, q.shape[2], -1))  # W_k^T q
        attended = attend(q, below, block, self.time, keep)
        value = self.value.weight.view(self.heads, -1, self.value.in_features)
        gathered = product(attended.inputs, value.transpose(1, 2))
        bias = self.value.bias.view(self.heads, 1, -1)
        gathered = torch.addcmul(gathered, attended.weight.unsqueeze(-1), bias)
        return gathered.transpose(0, 1).flatten(1)

    def check_widths(self, below: Tensor | None, block: Block) -> None:
        """Raise ValueError if `below` or the block's edge features have another width."""
        found = 0 if block.edge_table is None else block.edge_table.shape[1]
        if found != self.edge_x_dim:
            raise width_error("edge", self.edge_x_dim, found)
        found = 0 if below is None else below.shape[1]
        if found != self.h_dim:
            raise ValueError(
                f"attention over inputs of width {self.h_dim} got some of {found}; see its h_dim"
            )

    def queries(self, target: Tensor | None) -> Tensor:
        """Return q / sqrt(head width), `[heads, N, head width]`, or one for all without targets."""
        q = self.query_time(self.time.at_zero())
        if target is not None and self.query is not None:
            q = product(target, self.query.weight.t(), q)
        width = q.shape[-1] // self.heads
        scaled: Tensor = q * (1 / math.sqrt(width))
        return scaled.view(-1, self.heads, width).transpose(0, 1)


_AT_ONCE = 16_384
"""Targets whose rows stay in cache from one product to the next."""
_by_target: ContextVar[bool] = ContextVar("by_target", default=False)


@contextmanager
def each_target_alone() -> Iterator[None]:
    """Context manager in which on the CPU the bits of an embedding do not depend on others."""
    token = _by_target.set(True)
    try:
        yield
    finally:
        _by_target.reset(token)


class AttentionLayer(nn.Module):
    """Attention over the neighbors, merged with the target's inputs (Eq. 8 of arXiv:2002.07962).

    Without gradients, and with more targets than distinct neighbors and events, as where an event
    is ranked among a thousand others, keys and values are projected once per neighbor instead: what
    remains per target are the time encodings and two products. Only rounding differs. See
    `each_target_alone`. The arguments are those of `TemporalAttention`.
    """

    def __init__(
        self,
        time: TimeEncoding,
        *,
        h_dim: int,
        edge_x_dim: int,
        dim: int,
        heads: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.attention = TemporalAttention(
            time, h_dim=h_dim, edge_x_dim=edge_x_dim, dim=dim, heads=heads, dropout=dropout
        )
        self.merge = MergeLayer(dim, h_dim, dim, dim)

    def forward(self, below: Tensor | None, block: Block) -> Tensor:
        """Return embeddings `[N, dim]` of a block's targets; `below` as in `TemporalAttention`."""
        like, learns = self.merge.out.weight, torch.is_grad_enabled() or self.training
        if is_fused(like) and not (learns or _by_target.get()) and can_attend(like, block):
            tables = [(below, block.neighbor), (block.edge_table, block.edge_row)]
            used = [_used_rows(*each) for each in tables]
            if sum(map(len, used)) <= len(block.target):
                return self._embed_many(below, block, *used)
        target = None if below is None else gather_rows(below, block.target, block.target_lists)
        merged: Tensor = self.merge(self.attention(target, below, block), target)
        return merged

    def _embed_many(
        self, below: Tensor | None, block: Block, nodes: Tensor, edges: Tensor
    ) -> Tensor:
        """Do the same by projecting rows `nodes` of `below` and rows `edges` of the edge table.

        A value is W_1 W_v x, with the merge's first map W_1, one for each head.
        """
        a, merge = self.attention, self.merge
        a.check_widths(below, block)
        left = merge.left_proj.weight.view(len(merge.out.weight.t()), a.heads, -1).transpose(0, 1)
        value = torch.bmm(left, a.value.weight.view(a.heads, left.shape[2], -1)).flatten(0, 1)
        weight = torch.cat([a.key.weight, value])
        widths = [a.h_dim, a.edge_x_dim, a.time.dim]
        of_below, of_edge, of_time = torch.split(weight, widths, dim=1)
        node_table = _projected(below, nodes, of_below)
        edge_table = _projected(block.edge_table, edges, of_edge)
        key_time, value_time = torch.split(of_time, [len(a.key.weight), len(value)])
        key_time = key_time.view(a.heads, left.shape[2], -1)
        value_time = value_time.view(a.heads, left.shape[1], -1).transpose(1, 2).flatten(0, 1)
        bias = merge.left_proj.weight @ a.value.bias

        def mapped(target: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
            query, own = a.queries(target), merge.left_proj.bias.unsqueeze(0)
            if target is not None and merge.right_proj is not None:
                own = own + merge.right_proj(target)
            return query.contiguous(), product(query, key_time), own

        is_few = below is None or len(below) <= len(block.target)
        query, time_query, own = mapped(below if is_few else None)
        times = block.dt.new_empty(min(len(block.target), _AT_ONCE), len(value_time))
        out = block.dt.new_empty(len(block.target), self.dim)
        for part, embedded in zip(block.parts(_AT_ONCE), torch.split(out, _AT_ONCE), strict=True):
            row, time = part.target, times[: len(part.target)]
            if below is None:
                row = torch.zeros_like(row)
            elif not is_few:
                query, time_query, own = mapped(below.index_select(0, row))
                row = torch.arange(len(row))
            hidden = own.index_select(0, row)
            attend_projected(
                query_row=row, query=query, time_query=time_query, below=node_table,
                neighbor=part.neighbor, edges=edge_table, edge_row=part.edge_row, bias=bias,
                eid=part.eid, mask=part.mask, dt=part.dt, frequency=a.time.frequency,
                time=time, value=hidden,
            )  # fmt: skip
            hidden = product(time, value_time, hidden).relu_()
            product(hidden, merge.out.weight.t(), embedded.copy_(merge.out.bias))
        return out


def _used_rows(table: Tensor | None, row: Tensor | None) -> Tensor:
    """Return the distinct `row`, ascending; none without a table."""
    is_used = torch.zeros(0 if table is None else len(table), dtype=torch.bool)
    if table is not None and row is not None:
        is_used[row.flatten()] = True
    return is_used.nonzero().squeeze(1)


def _projected(table: Tensor | None, rows: Tensor, weight: Tensor) -> Tensor | None:
    """Return a table with the products of the given rows; others are undefined."""
    if table is None:
        return None
    out = table.new_empty(len(table), len(weight))
    return out.index_copy_(0, rows, product(table.index_select(0, rows), weight.t()))


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(FeatureConfig):
    """Settings of a model whose embeddings are those of an `AttentionStack`."""

    embedding_dim: Annotated[int, Ge(1)] = 100
    """Width of a layer's output."""
    heads: Annotated[int, Ge(1)] = 2
    """Attention heads; divides `embedding_dim`."""
    layers: Annotated[int, Ge(1)] = 1
    """Attention layers, equal to the number of sampled hops."""
    neighbors: Annotated[int, Ge(1)] = 10
    """Neighbors per node and layer."""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.1
    """Share of attention weights dropped in training."""
    pair_features: tuple[PairGroup, ...] = PAIR_GROUPS
    """Groups of the exact history of each pair that the decoder also reads, see `tgflow.nn.groups`;
    the paper's reads none. With any, shown as NAME+pairs."""
    num_relations: Annotated[int, Ge(0), Le(NUM_RELATIONS)] = 0
    """Relations that the decoder embeds, for a stream with relations; 0: it reads none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.embedding_dim % self.heads:
            raise ValueError(
                f"heads must divide embedding_dim, got {self.heads} and {self.embedding_dim}"
            )

    @property
    def fanouts(self) -> tuple[int, ...]:
        """Neighbors per hop, as in `TemporalModel.fanouts`."""
        return (self.neighbors,) * self.layers


class AttentionStack(nn.Module):
    """Layers of attention, each from the frontier below to its block's targets."""

    def __init__(self, config: AttentionConfig, h_dim: int, time: TimeEncoding) -> None:
        super().__init__()
        widths = [h_dim] + [config.embedding_dim] * (config.layers - 1)
        self.layers = nn.ModuleList(  # top layer first, like the blocks
            AttentionLayer(
                time,
                h_dim=width,
                edge_x_dim=config.edge_x_dim,
                dim=config.embedding_dim,
                heads=config.heads,
                dropout=config.dropout,
            )
            for width in reversed(widths)
        )

    def forward(self, h: Tensor | None, blocks: Sequence[Block]) -> Tensor:
        """Return the embeddings of the top frontier, float32 `[N, embedding_dim]`."""
        for layer, block in zip(reversed(self.layers), reversed(blocks), strict=True):
            h = layer(h, block)
        assert h is not None
        return h
