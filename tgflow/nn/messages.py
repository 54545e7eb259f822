"""The messages that a batch's events leave for their nodes."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Aggregator = Literal["last", "mean"]


class Mail(NamedTuple):
    """The messages of a batch, reduced to one per node.

    On the CPU each node has one row. On a device, where how many nodes there are would have to be
    waited for, there are 2B rows: a node with several messages has as many, all alike.
    """

    row: Tensor
    """int64 `[R]`: the message that came last for each node, as an index into 2B messages, where
    2i is the one to event i's source and 2i + 1 the one to its destination."""
    node: Tensor
    """int64 `[R]`: who receives it, ascending."""
    t: Tensor
    """int64 `[R]`: when its last event happened."""
    x: Tensor
    """float32 `[R, mail_dim]`."""
    is_last: Tensor | None = None
    """bool `[R]`: marks one row of each node; None where there are no others."""


def aggregate(
    src: Tensor, dst: Tensor, t: Tensor, messages: Tensor, aggregator: Aggregator
) -> Mail:
    """Reduce the messages of a batch to one per node, the same at every run; does not synchronize.

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
    if node.device.type != "cpu":
        return _repeated(node, order, is_last, t, messages, aggregator)
    end = is_last.nonzero().squeeze(1)
    row = order.index_select(0, end)
    if aggregator == "last" or len(row) == len(order):  # a mean of one each is the last
        x = messages.index_select(0, row)
    else:
        count = torch.diff(end, prepend=end.new_full((1,), -1))
        x = torch.segment_reduce(messages.index_select(0, order), "mean", lengths=count)
    return Mail(row, node.index_select(0, end), t.index_select(0, row // 2), x)


def _repeated(
    node: Tensor,
    order: Tensor,
    is_last: Tensor,
    t: Tensor,
    messages: Tensor,
    aggregator: Aggregator,
) -> Mail:
    """Return a row for each message, in shapes that depend on the batch's size alone.

    Args:
        node: Receivers, int64 `[2B]`, ascending.
        order: The message of each, int64 `[2B]`, ascending among those to one node.
        is_last: Whether a message is the last to its node, bool `[2B]`.
        t: As `aggregate`.
        messages: As `aggregate`.
        aggregator: As `aggregate`.
    """
    row = order.index_select(0, torch.searchsorted(node, node, right=True) - 1)
    if aggregator == "last":
        x = messages.index_select(0, row)
    else:
        end = is_last.cumsum(0)
        number = end - is_last.long()  # of each message's node, among the nodes in order
        edges = torch.arange(len(node) + 1, device=node.device)
        begins = torch.searchsorted(number, edges)
        ordered = messages.index_select(0, order)
        # unsafe: the offsets are right, and to check them waits for the device
        means = torch.segment_reduce(ordered, "mean", offsets=begins, unsafe=True, initial=0.0)
        x = means.index_select(0, number)
    return Mail(row, node, t.index_select(0, row // 2), x, is_last)
