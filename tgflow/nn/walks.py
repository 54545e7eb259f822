"""Temporal walks between nodes, by random projections of the matrices that count them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tgflow.base.keys import as_int64
from tgflow.base.units import seconds_of
from tgflow.graph.batch import Batch
from tgflow.nn.mail import aggregate, input_rows
from tgflow.nn.memory import MemoryRows, NodeMemory
from tgflow.nn.memory_table import MemoryTable
from tgflow.nn.messages import Messages, NewEvents
from tgflow.nn.pairs import Pairs

_WORD = 64
_STEP = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def random_signs(nodes: Tensor, dim: int) -> Tensor:
    """Return rows of +-dim^-1/2, float32 `[N, dim]`: of unit length, orthogonal in expectation."""
    num_words = -(-dim // _WORD)
    number = torch.arange(num_words, device=nodes.device) + 1
    bits = mix64(mix64(nodes.unsqueeze(1)) + number * as_int64(_STEP))  # [N, words]
    place = torch.arange(_WORD, device=nodes.device)
    ones = (bits.unsqueeze(-1) >> place) & 1
    signs = ones.view(len(nodes), num_words * _WORD)[:, :dim].to(torch.float32)
    return signs.mul_(2 * dim**-0.5).sub_(dim**-0.5)


def mix64(x: Tensor) -> Tensor:
    """Return int64 in which every bit depends on all bits of `x`: splitmix64's last step."""
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        x = (x ^ _shifted(x, shift)) * as_int64(factor)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    return (x >> by) & ((1 << (_WORD - by)) - 1)


MAX_PAIRS = 4096
"""Pairs multiplied at once on the CPU: bounds memory, and does not change results."""


class WalkRows(NamedTuple):
    """The projections of a batch's input rows, `batch.nodes`; without gradients."""

    base: Tensor
    """float32 `[U, dim]`: of walks without events."""
    memory: MemoryRows
    """Walks of 1, ..., `hops` events, as of their last update: float32 `[U, hops * dim]`."""
    decay: float
    """Decay of a walk per event and second."""
    seconds_per_tick: float

    @property
    def hops(self) -> int:
        return self.memory.state.shape[1] // self.base.shape[1]

    def features(self, a: Tensor, b: Tensor, t: Tensor, mask: Tensor) -> Tensor:
        """Return log(1 + relu(G)) of the Gram matrices G of the walks of pairs of nodes.

        G has the inner products of [H^0, ..., H^hops] of both nodes with each other. It is
        symmetric: its upper triangle is returned, row by row, `[*a.shape, num_features(hops)]`.
        Does not synchronize.
        """
        shape, size, walks = a.shape, num_features(self.hops), self.walks()
        columns = [x.expand(shape).flatten() for x in (a, b, t, mask)]
        # In parts on the CPU, as each pair takes 2 * (1 + hops) rows of walks.
        at_once = MAX_PAIRS if walks.is_cpu else max(len(columns[0]), 1)
        found = []
        for part in zip(*(torch.split(column, at_once) for column in columns), strict=True):
            of_a, of_b, when, filled = part
            gram = gram_products(walks, of_a, of_b, self.left(of_a, when), self.left(of_b, when))
            found.append(gram.relu_().log1p_().masked_fill_(~filled.unsqueeze(1), 0.0))
        return torch.cat(found).view(*shape, size)

    def walks(self) -> Tensor:
        """Return the projections of walks of 0, ..., hops events, float32 `[U, 1 + hops, dim]`."""
        dim = self.base.shape[1]
        return torch.cat([self.base, self.memory.state], dim=1).view(
            len(self.base), 1 + self.hops, dim
        )

    def left(self, row: Tensor, t: Tensor) -> Tensor:
        """Return the share at `t` of walks of one event left in the given rows, float32 `[P]`."""
        return self.left_after(t - self.memory.last_update.index_select(0, row))

    def left_after(self, ticks: Tensor) -> Tensor:
        """Return the share of walks of one event left after some time, float32 `[P]`."""
        seconds = seconds_of(ticks.clamp(min=0), self.seconds_per_tick)
        return torch.exp(seconds.to(torch.float32) * -self.decay)


def near_features(
    walks: WalkRows,
    walk_map: Callable[[Tensor, None], Tensor],
    neighbor: Tensor,
    node: Tensor,
    t: Tensor,
    mask: Tensor,
    proj: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return a network's features of the walks between neighbors and nodes, `[R, k, dim]`.

    Empty slots have zeros; `proj` is a linear map without a bias behind `walk_map`.

    On the CPU only filled slots are computed; on a GPU all are, to avoid synchronization.
    """
    neighbor, node, t, filled = (
        x.expand(mask.shape).flatten() for x in (neighbor, node[:, None], t[:, None], mask)
    )
    slot = filled.nonzero().squeeze(1) if mask.is_cpu else None
    if slot is not None:
        neighbor, node, t, filled = (x[slot] for x in (neighbor, node, t, filled))
    found = walk_map(walks.features(neighbor, node, t, filled), None)
    if proj is not None:
        found = proj(found)
    if slot is None:
        found = found * filled.unsqueeze(1)
    else:
        found = found.new_zeros(mask.numel(), found.shape[1]).index_copy(0, slot, found)
    return found.view(*mask.shape, found.shape[1])


@dataclass(frozen=True)
class WalkProjection:
    """H^l = A^l R: temporal walk matrices (arXiv:2410.04013), held as rows of a `NodeMemory`.

    A^l(t)[u, w] sums up the walks of l events from u back to w, at ever earlier times, each with
    the product of exp(-decay (t - t_i)) over its events at t_i. The inner product of two rows of H
    is that of the rows of A, up to the error of the projection.

    A row holds H^1, ..., H^hops as of its `last_update` and decays when it is read. H^0 = R is
    never stored. The events of a batch read rows as of the batch's start, as all memory does, so
    that walks through several events of one batch are not seen.
    """

    dim: int
    hops: int
    decay: float
    base: Callable[[Tensor], Tensor] | None = None

    def memory(self, table: MemoryTable | None = None) -> NodeMemory:
        return NodeMemory(self.hops * self.dim, 0, table)

    def read(self, memory: NodeMemory, batch: Batch) -> WalkRows:
        nodes = batch.nodes
        base = random_signs(nodes, self.dim) if self.base is None else self.base(nodes)
        rows = memory.read(nodes, batch.position, batch.since)
        return WalkRows(base, rows, self.decay, batch.seconds_per_tick)

    def messages(self, batch: Batch, rows: WalkRows) -> Messages:
        """Return the walks created by the batch's new events, as of the last of them, for `write`.

        Columns are those that continue from an event, and the earlier ones of its node.
        """
        n, row, end = batch.num_new, input_rows(batch), batch.last_t
        t, other = batch.t[:n].repeat_interleave(2), row.view(n, 2).flip(1).flatten()
        walks = rows.walks()
        then = powers(rows.left(other, t), self.hops)
        now = powers(rows.left_after(end - t), self.hops)
        longer = walks[other, :-1] * then[:, :-1] * now[:, 1:]
        kept = walks[row, 1:] * powers(rows.left(row, end), self.hops)[:, 1:]
        return Messages((longer.flatten(1), kept.flatten(1)), per_event=2)

    def write(self, memory: NodeMemory, events: NewEvents, messages: Messages) -> None:
        """Add the walks created by new events, all at once, as of the last of them."""
        if len(events) == 0:
            return
        longer, kept = messages.columns
        mail = aggregate(events.src, events.dst, events.t, longer, "mean")
        receivers = torch.cat([events.src, events.dst]).sort().values
        begin, stop = (torch.searchsorted(receivers, mail.node, right=r) for r in (False, True))
        update, nothing = events.t[-1:].repeat(len(mail.row)), kept.new_empty(len(mail.row), 0)
        # with the sums of the messages
        walks = kept.index_select(0, mail.row) + mail.x * (stop - begin).unsqueeze(1)
        position = events.end if mail.is_last is None else events.eid[-1:] + 1
        columns = walks, update, nothing, update
        memory.write(mail.node, *columns, position=position, is_last=mail.is_last)


def num_features(hops: int) -> int:
    """Return the number of distinct products of two nodes' walks of 0, ..., hops events."""
    return (hops + 1) * (2 * hops + 3)


def row_times(batch: Batch, pairs: Pairs) -> Tensor:
    """Return the time of each row of the top frontier, int64 `[N]`; 0 for padding."""
    t = pairs.column(batch.t.unsqueeze(1).expand(-1, 1 + batch.negative_dst.shape[1]))
    out = t.new_zeros(len(batch.blocks[0].target))
    return out.index_copy_(0, torch.cat([pairs.src_row, pairs.dst_row]), torch.cat([t, t]))


def gram_products(walks: Tensor, a: Tensor, b: Tensor, left_a: Tensor, left_b: Tensor) -> Tensor:
    """Return the products of two nodes' walks, `[P, num_features]`."""
    hops = walks.shape[1] - 1
    of_a = walks.index_select(0, a) * powers(left_a, hops)
    of_b = walks.index_select(0, b) * powers(left_b, hops)
    both = torch.cat([of_a, of_b], dim=1)
    gram = both @ both.transpose(1, 2)
    size = 2 * (hops + 1)
    row, column = torch.triu_indices(size, size, device=gram.device)
    return gram.flatten(1).index_select(1, row * size + column)


def powers(left: Tensor, hops: int) -> Tensor:
    """Return the remaining share of walks of 0, ..., hops events, float32 `[P, 1 + hops, 1]`."""
    found = [torch.ones_like(left)]
    for _ in range(hops):
        found.append(found[-1] * left)
    return torch.stack(found, dim=1).unsqueeze(-1)
