"""Updates of a model's state from a batch's events, before they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from tgflow.base.describe import described
from tgflow.cuda.pinned import uploaded
from tgflow.graph.batch import Batch, HostEvents


@described
@dataclass(frozen=True, slots=True, eq=False)
class NewEvents:
    """The new events of a whole batch, in order, to update a state with.

    Example:
        >>> tg.messages.NewEvents.of(plan.batch(0, 1)).dst.tolist()
        [3, 2]
    """

    eid: Tensor
    """int64 `[n]`: log positions."""
    src: Tensor
    """int64 `[n]`."""
    dst: Tensor
    """int64 `[n]`."""
    t: Tensor
    """int64 `[n]`: ticks."""
    end: int
    """Log position from which on events may read the updated state."""

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """Return the new events of a batch, on its device."""
        n = batch.num_new
        return cls(batch.eid[:n], batch.src[:n], batch.dst[:n], batch.t[:n], batch.host.end)

    @classmethod
    def of_host(cls, host: HostEvents, num_new: int, device: torch.device) -> Self:
        """Return the first events of `host` on a device; does not synchronize."""
        columns = [each[:num_new] for each in (host.eid, host.src, host.dst, host.t)]
        eid, src, dst, t = uploaded(columns, device)
        return cls(eid, src, dst, t, host.end)

    def __len__(self) -> int:
        return len(self.eid)


@described
@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Rows from new events for a model's state, in the order of the events.

    A batch's rows are the concatenation of its slices' rows. Their number, and which of them are
    read, is known from the log: ranks that computed other slices receive the rows alone.

    Example:
        >>> batch = plan.batch(0, 1)
        >>> messages = model.messages(batch, model(batch))
        >>> model.store(tg.messages.NewEvents.of(batch), messages)
    """

    columns: tuple[Tensor, ...] = ()
    """Each `[per_event * n, ...]` for `n` events; empty if the events themselves suffice."""
    per_event: int = 1
    """Rows per event: one; or two, to its source and then to its destination."""
    last_only: bool = False
    """Whether only the last row to each node is read, for two rows per event."""

    @classmethod
    def joined(cls, parts: Sequence[Messages]) -> Messages:
        """Return the concatenated messages of consecutive slices, of one at least."""
        first = parts[0]
        if len(parts) == 1:
            return first
        columns = zip(*(part.columns for part in parts), strict=True)
        return cls(tuple(map(torch.cat, columns)), first.per_event, first.last_only)

    def taken(self, rows: Tensor) -> Messages:
        """Return some rows, by int64 in host memory; does not synchronize."""
        if not self.columns:
            return self
        [there] = uploaded([rows], self.columns[0].device)
        return replace(self, columns=tuple(x.index_select(0, there) for x in self.columns))

    def placed(self, rows: Tensor, num_rows: int) -> Messages:
        """Return `num_rows` rows, of which these are `rows`; the others may have any value."""
        if not self.columns or len(rows) == num_rows:
            return self
        [there] = uploaded([rows], self.columns[0].device)
        outs = (x.new_empty(num_rows, *x.shape[1:]) for x in self.columns)
        columns = (out.index_copy_(0, there, x) for out, x in zip(outs, self.columns, strict=True))
        return replace(self, columns=tuple(columns))

    def rows_read(self, host: HostEvents, num_new: int) -> Tensor:
        """Return the rows of a whole batch's messages that are read, ascending, int64 on the CPU.

        All others may have any value. The new events, `num_new`, come first.
        """
        if not self.last_only:
            return torch.arange(self.per_event * num_new)
        return last_rows(host.src[:num_new], host.dst[:num_new])


def last_rows(src: Tensor, dst: Tensor) -> Tensor:
    """Return the last row to each node, ascending: int64 `[R]`, all on the CPU.

    Row `2 i` goes to `src[i]`, and row `2 i + 1` to `dst[i]`.
    """
    received = by_receiver(src, dst)
    return received.order.index_select(0, received.last).sort().values


class Received(NamedTuple):
    """Rows of events, ordered by receiver."""

    node: Tensor
    """int64 `[2n]`, ascending: receiver of each row."""
    order: Tensor
    """int64 `[2n]`: the rows; those of a node in order of arrival."""
    last: Tensor
    """int64 `[R]`: index in `order` of the last row of each node."""


def by_receiver(src: Tensor, dst: Tensor) -> Received:
    """Return the rows to the nodes of events, ordered by receiver; see `last_rows`."""
    node, order = torch.stack([src, dst], dim=1).flatten().sort(stable=True)
    is_last = torch.ones_like(node, dtype=torch.bool)
    is_last[:-1] = node[1:] != node[:-1]
    return Received(node, order, is_last.nonzero().squeeze(1))
