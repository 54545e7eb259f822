"""What the events of a batch leave for a model's state, before it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from tgflow.batch import Batch, HostEvents
from tgflow.describe import described


@described
@dataclass(frozen=True, slots=True, eq=False)
class NewEvents:
    """The new events of a whole batch, in order: those that a state takes in.

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
    """Log position from which on events may read what is stored."""

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """Return those of a batch, where it is."""
        n = batch.num_new
        return cls(batch.eid[:n], batch.src[:n], batch.dst[:n], batch.t[:n], batch.host.end)

    @classmethod
    def of_host(cls, host: HostEvents, num_new: int, device: torch.device) -> Self:
        """Return the first events of `host`, on a device; on a GPU this synchronizes."""
        eid, src, dst, t = (
            each[:num_new].to(device) for each in (host.eid, host.src, host.dst, host.t)
        )
        return cls(eid, src, dst, t, host.end)

    def __len__(self) -> int:
        return len(self.eid)


@described
@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Rows that new events leave for a model's state, in the order of the events.

    Those of a batch are those of its slices, one after the other. How many there are, and which of
    them are read, is known from the log: whoever computed other slices can be sent rows alone.

    Example:
        >>> batch = plan.batch(0, 1)
        >>> messages = model.messages(batch, model(batch))
        >>> model.store(tg.messages.NewEvents.of(batch), messages)
    """

    columns: tuple[Tensor, ...] = ()
    """Each `[per_event * n, ...]` for `n` events; none where the events themselves are enough."""
    per_event: int = 1
    """Rows of an event: one; or two, to its source and then to its destination."""
    last_only: bool = False
    """Whether only the row that came last to a node is read, of two rows an event."""

    @classmethod
    def joined(cls, parts: Sequence[Messages]) -> Messages:
        """Return the messages of slices next to each other as those of one batch.

        Args:
            parts: At least one, in order.
        """
        first = parts[0]
        if len(parts) == 1:
            return first
        columns = zip(*(part.columns for part in parts), strict=True)
        return cls(tuple(map(torch.cat, columns)), first.per_event, first.last_only)

    def rows_read(self, host: HostEvents, num_new: int) -> Tensor:
        """Return which rows of a whole batch's messages are read, ascending, int64 on the CPU.

        All others may hold anything.

        Args:
            host: The whole batch's events.
            num_new: How many of them, the first ones, are new.
        """
        if not self.last_only:
            return torch.arange(self.per_event * num_new)
        return last_rows(host.src[:num_new], host.dst[:num_new])


def last_rows(src: Tensor, dst: Tensor) -> Tensor:
    """Return the row that came last to each node, ascending: int64 `[R]`.

    Args:
        src: Sources, int64 `[n]` on the CPU.
        dst: Destinations; row `2 i` goes to `src[i]`, and row `2 i + 1` to `dst[i]`.
    """
    received = by_receiver(src, dst)
    return received.order.index_select(0, received.last).sort().values


class Received(NamedTuple):
    """Rows of events, in the order of who receives them."""

    node: Tensor
    """int64 `[2n]`, ascending: who receives each."""
    order: Tensor
    """int64 `[2n]`: the rows, those of a node as they came."""
    last: Tensor
    """int64 `[R]`: where in `order` the last one of each node is."""


def by_receiver(src: Tensor, dst: Tensor) -> Received:
    """Return the rows to the nodes of events in the order of who receives them; see `last_rows`."""
    node, order = torch.stack([src, dst], dim=1).flatten().sort(stable=True)
    is_last = torch.ones_like(node, dtype=torch.bool)
    is_last[:-1] = node[1:] != node[:-1]
    return Received(node, order, is_last.nonzero().squeeze(1))
