"""The messages that a batch's events leave for their nodes."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Aggregator = Literal["last", "mean"]


class Mail(NamedTuple):
    """At most one message per node."""

    row: Tensor
    """int64 `[R]`: the message that came last for each node, as an index into 2B messages, where
    2i is the one to event i's source and 2i + 1 the one to its destination."""
    node: Tensor
    """int64 `[R]`: who receives it, ascending."""
    t: Tensor
    """int64 `[R]`: when its last event happened."""
    x: Tensor
    """float32 `[R, mail_dim]`."""


def aggregate(
    src: Tensor, dst: Tensor, t: Tensor, messages: Tensor, aggregator: Aggregator
) -> Mail:
    """Reduce the messages of a batch to one per node, the same on every device and at every run.

    Args:
        src: Sources, int64 `[B]`.
        dst: Destinations, int64 `[B]`.
        t: Times in ticks, int64 `[B]`.
        messages: float32 `[2B, mail_dim]`: to src[0], dst[0], src[1], dst[1], ...
        aggregator: "last" keeps what came last in batch order; "mean" averages, and keeps the
            time of the last.
    """
    receiver = torch.stack([src, dst], dim=1).flatten()
    node, order = receiver.sort(stable=True)
    is_last = torch.ones_like(node, dtype=torch.bool)
    is_last[:-1] = node[1:] != node[:-1]
    end = is_last.nonzero().squeeze(1)
    row = order.index_select(0, end)
    if aggregator == "last" or len(row) == len(order):  # a mean of one each is the last
        x = messages.index_select(0, row)
    else:
        count = torch.diff(end, prepend=end.new_full((1,), -1))
        x = torch.segment_reduce(messages.index_select(0, order), "mean", lengths=count)
    return Mail(row, node.index_select(0, end), t.index_select(0, row // 2), x)
