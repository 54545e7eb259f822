"""The messages that a batch's events leave for their nodes."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from tgflow.cuda.devices import device_of
from tgflow.cuda.mail import LastMessages
from tgflow.messages import by_receiver

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
    if not src.is_cpu:
        return _aggregate_on_device(src, dst, t, messages, aggregator)
    node, order, end = by_receiver(src, dst)
    row = order.index_select(0, end)
    if aggregator == "last" or len(row) == len(order):  # a mean of one each is the last
        x = messages.index_select(0, row)
    else:
        count = torch.diff(end, prepend=end.new_full((1,), -1))
        x = torch.segment_reduce(messages.index_select(0, order), "mean", lengths=count)
    return Mail(row, node.index_select(0, end), t.index_select(0, row // 2), x)


def _aggregate_on_device(
    src: Tensor, dst: Tensor, t: Tensor, messages: Tensor, aggregator: Aggregator
) -> Mail:
    last = LastMessages(device_of(src.device).kernels, src, dst, t)
    is_picked = aggregator == "last"
    x = messages.index_select(0, last.row) if is_picked else last.mean(messages)
    return Mail(last.row, last.node, last.t, x, last.is_last)
