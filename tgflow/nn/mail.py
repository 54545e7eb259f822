"""What a batch's events leave behind in a node memory: updated rows, and mail for the next use."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tgflow.batch import Batch
from tgflow.nn.memory import NodeMemory
from tgflow.nn.memory_rows import MemoryRows
from tgflow.nn.messages import Aggregator, aggregate


class UpdatedMemory(NamedTuple):
    """What a model computed of a batch's input rows, which `leave_mail` may write."""

    rows: MemoryRows
    memory: Tensor
    """float32 `[U, memory_dim]`: the memory of `rows` after their mail, without gradients."""


@torch.no_grad()
def leave_mail(
    state: NodeMemory, batch: Batch, updated: UpdatedMemory, aggregator: Aggregator
) -> None:
    """Store the updated memory of the new events' nodes, and leave them these events as mail.

    The mail to a node is the other end's updated memory and the event's features. Does not
    synchronize, as far as `NodeMemory.write` does not.

    Args:
        state: Where memory and mail are.
        batch: The batch; its replayed events leave nothing.
        updated: What was computed of `batch.nodes`.
        aggregator: What becomes of several events of one node.
    """
    n = batch.num_new
    if n == 0:
        return
    row = torch.stack([batch.src_row[:n], batch.dst_row[:n]], dim=1).flatten()
    for block in batch.blocks:  # from the top frontier down to the inputs
        row = block.target.index_select(0, row)
    own = updated.memory.index_select(0, row)
    other = own.view(n, 2, -1).flip(1).view(2 * n, -1)
    if batch.x is not None:
        other = torch.cat([other, batch.x[:n].repeat_interleave(2, dim=0)], dim=1)
    mail = aggregate(batch.src[:n], batch.dst[:n], batch.t[:n], other, aggregator)
    before, at = updated.rows, row.index_select(0, mail.row)
    had_mail, mail_t = before.has_mail.index_select(0, at), before.mail_t.index_select(0, at)
    state.write(
        mail.node,
        own.index_select(0, mail.row),
        torch.where(had_mail, mail_t, mail.t),
        mail.x,
        mail.t,
        position=batch.host.end if mail.is_last is None else batch.eid[n - 1 : n] + 1,
        is_last=mail.is_last,
    )
