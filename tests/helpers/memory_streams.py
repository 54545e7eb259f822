"""Streams that write a node memory and read it, whoever holds its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import strategies as st

from helpers.shards import spread
from tgflow.batch import HostEvents
from tgflow.messages import Messages, NewEvents
from tgflow.nn.mail import Aggregator, store_mail
from tgflow.share import Share

DIM, MAIL_DIM = 2, 3
SLICES = 4


@dataclass(frozen=True)
class MemoryStream:
    """Batches of events with self-loops, of nodes that appear one after the other."""

    sizes: Sequence[int]
    """New events of each batch."""
    replayed: int
    """Further rows of each batch, which leave nothing."""
    aggregator: Aggregator
    past: int
    """How many events back each batch reads, and what is kept for it."""
    seed: int

    def begin(self, number: int) -> int:
        """Return the log position at which a batch begins."""
        return sum(self.sizes[:number])

    def share(self, number: int, numbers: range = range(SLICES)) -> Share:
        """Return slices of a batch, with the events of all of it."""
        begin, num_new = self.begin(number), self.sizes[number]
        num_rows, end = num_new + self.replayed, begin + num_new
        draw = torch.Generator().manual_seed(self.seed + number)
        src, dst = spread(torch.randint(2 + 2 * number, (2, num_rows), generator=draw))
        dst[::3] = src[::3]
        eid = torch.arange(begin, begin + num_rows)
        host = HostEvents(eid, src, dst, 5 * eid, begin, end, torch.zeros(num_rows, 1).bool())
        return Share((), numbers, SLICES, 0, number, num_new, 0, host)

    def messages(self, share: Share) -> dict[int, Messages]:
        """Return what the new events of each slice leave: other values for each row."""
        found = {}
        for number in share.numbers:
            new = share.new_rows_of(number)
            row = torch.arange(2 * new.start, 2 * new.stop)
            value = ((1000 * share.index + row) / 7).unsqueeze(1)
            columns = value.repeat(1, DIM), row, value.repeat(1, MAIL_DIM).sqrt()
            found[number] = Messages(columns, 2, last_only=self.aggregator == "last")
        return found

    def queries(self, number: int, rank: int) -> list[Any]:
        """Return what two batches of a rank read, of a whole micro-batch: perhaps nothing."""
        begins = torch.tensor([self.begin(each) for each in range(number + 1)])
        oldest = int((begins >= begins[-1] - self.past).nonzero()[0])
        draw = torch.Generator().manual_seed(97 * self.seed + 11 * number + rank)
        found = []
        for size in (6, 0 if rank == 1 else 9):
            nodes = spread(torch.randint(4 + 2 * number, (size,), generator=draw))
            batch = torch.randint(oldest, number + 1, (size,), generator=draw)
            found.append(SimpleNamespace(nodes=nodes, position=begins[batch]))
        return found

    def store(self, memory: Any, share: Share, messages: Messages) -> None:
        """Store what a batch leaves."""
        events = NewEvents.of_host(share.host, share.num_new, torch.device("cpu"))
        store_mail(memory, events, messages, self.aggregator)


def memory_streams() -> st.SearchStrategy[MemoryStream]:
    """Short streams, with batches of one event and of fewer than there are slices."""
    return st.builds(
        MemoryStream,
        st.lists(st.integers(1, 9), min_size=2, max_size=7),
        st.integers(0, 5),
        st.sampled_from(("last", "mean")),
        st.sampled_from((0, 3, 20, 100)),
        st.integers(0, 2**16),
    )
