"""Mail of node memories: the messages of a batch's events, aggregated by node."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from tgflow.cuda.device import device_of
from tgflow.graph.batch import Batch
from tgflow.nn.memory import MemoryRows, NodeMemory
from tgflow.nn.messages import Messages, NewEvents, by_receiver

Aggregator = Literal["last", "mean"]


class Mail(NamedTuple):
    """The messages of a batch, reduced to one per node.

    On the CPU each node has one row. On a device there are 2B rows, as their number would need
    synchronization: a node with several messages has as many equal rows.
    """

    row: Tensor
    """int64 `[R]`: the last message of each node, as an index into 2B messages, where 2i is the one
    to event i's source and 2i + 1 the one to its destination."""
    node: Tensor
    """int64 `[R]`: receiver, ascending."""
    t: Tensor
    """int64 `[R]`: time of its last event."""
    x: Tensor
    """float32 `[R, mail_dim]`."""
    is_last: Tensor | None = None
    """bool `[R]`: marks one row of each node; None if rows are distinct."""


def aggregate(
    src: Tensor, dst: Tensor, t: Tensor, messages: Tensor, aggregator: Aggregator
) -> Mail:
    """Reduce the messages of a batch to one per node, deterministically; does not synchronize.

    Args:
        src: Sources, int64 `[B]`.
        dst: Destinations, int64 `[B]`.
        t: Times in ticks, int64 `[B]`.
        messages: float32 `[2B, mail_dim]`: to src[0], dst[0], src[1], dst[1], ...
        aggregator: "last" keeps the last message in batch order; "mean" averages, and keeps the
            last time.
    """
    if not src.is_cpu:
        from tgflow.cuda.mail import LastMessages

        last = LastMessages(device_of(src.device).kernels, src, dst, t)
        is_picked = aggregator == "last"
        x = messages.index_select(0, last.row) if is_picked else last.mean(messages)
        return Mail(last.row, last.node, last.t, x, last.is_last)
    node, order, end = by_receiver(src, dst)
    row = order.index_select(0, end)
    if aggregator == "last" or len(row) == len(order):  # a mean of one each is the last
        x = messages.index_select(0, row)
    else:
        count = torch.diff(end, prepend=end.new_full((1,), -1))
        x = torch.segment_reduce(messages.index_select(0, order), "mean", lengths=count)
    return Mail(row, node.index_select(0, end), t.index_select(0, row // 2), x)


class UpdatedMemory(NamedTuple):
    """Memory computed from a batch's input rows, from which `mail_messages` are made."""

    rows: MemoryRows
    memory: Tensor
    """float32 `[U, memory_dim]`: the memory of `rows` after their mail, without gradients."""


def mail_messages(batch: Batch, updated: UpdatedMemory, aggregator: Aggregator) -> Messages:
    """Return the new events' messages to their nodes, for `store_mail`; does not synchronize.

    Columns are the updated memory, the tick of the last event in it and the mail: the other end's
    updated memory and the event's features.
    """
    n, is_last = batch.num_new, aggregator == "last"
    if not updated.memory.is_cpu:
        from tgflow.cuda.mail import new_mail

        src, dst, target = batch.src_row[:n], batch.dst_row[:n], None
        if len(batch.blocks) == 1:
            target = batch.blocks[0].target
        elif batch.blocks:
            src, dst = input_rows(batch).view(-1, 2).unbind(1)
        x = None if batch.x is None else batch.x[:n].contiguous()
        kernels, clock = device_of(updated.memory.device).kernels, updated.rows.clock
        made = new_mail(kernels, src, dst, target, batch.t[:n], updated.memory, clock, x)
        return Messages(made, per_event=2, last_only=is_last)
    row = input_rows(batch)
    own = updated.memory.index_select(0, row)
    other = own.view(n, 2, own.shape[1]).flip(1).view(2 * n, own.shape[1])
    if batch.x is not None:
        other = torch.cat([other, batch.x[:n].repeat_interleave(2, dim=0)], dim=1)
    before, t = updated.rows, batch.t[:n].repeat_interleave(2)
    had_mail, mail_t = before.has_mail.index_select(0, row), before.mail_t.index_select(0, row)
    last_update = torch.where(had_mail, mail_t, t)
    return Messages((own, last_update, other), per_event=2, last_only=is_last)


def store_mail(
    state: NodeMemory, events: NewEvents, messages: Messages, aggregator: Aggregator
) -> None:
    """Store the updated memory of the new events' nodes, and these events as their mail."""
    if len(events) == 0:
        return
    memory, last_update, other = messages.columns
    if not memory.is_cpu and aggregator == "last":
        from tgflow.cuda.mail import LastMessages

        last = LastMessages(device_of(memory.device).kernels, events.src, events.dst, events.t)
        columns, end = (memory, last_update, other, last.t), events.eid[-1:] + 1
        state.write(last.node, *columns, position=end, is_last=last.is_last, row=last.row)
        return
    mail = aggregate(events.src, events.dst, events.t, other, aggregator)
    memory, last_update = (x.index_select(0, mail.row) for x in (memory, last_update))
    position = events.end if mail.is_last is None else events.eid[-1:] + 1
    columns = memory, last_update, mail.x, mail.t
    state.write(mail.node, *columns, position=position, is_last=mail.is_last)


def input_rows(batch: Batch) -> Tensor:
    """Return the indices of the new events' nodes in `batch.nodes`, source and destination."""
    n = batch.num_new
    row = torch.stack([batch.src_row[:n], batch.dst_row[:n]], dim=1).flatten()
    for block in batch.blocks:  # from the top frontier down to the inputs
        row = block.target.index_select(0, row)
    return row
