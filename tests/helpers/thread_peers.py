"""Ranks that are threads of this process: what is written over `Peers`, without processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from tgflow.peers import Alone, Group, PeerLost, Shard, check_buffers, check_chunks

Answer = TypeVar("Answer")
_PATIENCE = 20.0


class ThreadPeers(Alone):
    """A rank of `in_threads`."""

    def __init__(self, rank: int, meeting: threading.Barrier, table: list[list[Tensor]]) -> None:
        super().__init__()
        self.rank, self.world = rank, len(table)
        self.shard = Shard(rank, len(table))
        self._meeting, self._table = meeting, table

    def exchange(
        self,
        sends: Sequence[Tensor],
        receives: Sequence[Tensor],
        *,
        kind: str,
        group: Group = "train",
    ) -> None:
        """Lay buffers on the table, and take what the others have laid there for this rank."""
        check_buffers(self, sends, receives)
        start = time.perf_counter()
        self._table[self.rank] = list(sends)
        self._meet()
        for rank, buffer in enumerate(receives):
            sent = self._table[rank][self.rank]
            assert sent.shape == buffer.shape, f"{rank} sent {len(sent)} bytes, not {len(buffer)}"
            buffer.copy_(sent)
        self._meet()
        others = sum(len(x) for rank, x in enumerate(sends) if rank != self.rank)
        self.traffic.count(kind, others, time.perf_counter() - start)

    def gather(
        self, mine: Tensor, sizes: Sequence[int], *, kind: str, group: Group = "train"
    ) -> Tensor:
        """Send the chunk to all, and put theirs one after the other."""
        check_chunks(self, mine, sizes)
        whole = mine.new_empty(sum(sizes)).view(torch.uint8)
        parts = torch.split(whole, [size * mine.element_size() for size in sizes])
        sends = [mine.contiguous().view(torch.uint8)] * self.world
        self.exchange(sends, parts, kind=kind, group=group)
        return whole.view(mine.dtype)

    def broadcast(self, tensor: Tensor, *, kind: str, group: Group = "train") -> None:
        """Take what rank 0 has laid on the table."""
        self._table[self.rank] = [tensor]
        self._meet()
        tensor.copy_(self._table[0][0])
        self._meet()

    def _meet(self) -> None:
        try:
            self._meeting.wait(_PATIENCE)
        except threading.BrokenBarrierError:
            raise PeerLost("another rank has raised, or hangs") from None


def in_threads(world: int, work: Callable[[ThreadPeers], Answer]) -> list[Answer]:
    """Return what `work` returns on each rank; the error of the first that raised, if any."""
    meeting, table = threading.Barrier(world), [[] for _ in range(world)]

    def run(rank: int) -> Answer:
        try:
            return work(ThreadPeers(rank, meeting, table))
        except BaseException:
            meeting.abort()
            raise

    with ThreadPoolExecutor(world) as pool:
        futures = [pool.submit(run, rank) for rank in range(world)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, PeerLost)):
        raise error
    return [future.result() for future in futures]
