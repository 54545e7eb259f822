"""Ranks as threads of this process, for tests of code over `Peers`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, get_args

import torch
from torch import Tensor

from tgflow.base.peers import Group, PeerLost, Peers, Shard, check_buffers, check_chunks

Answer = TypeVar("Answer")
_PATIENCE = 20.0


class _Table:
    """Exchange buffers and barrier of one group of ranks."""

    def __init__(self, world: int) -> None:
        self.meeting = threading.Barrier(world)
        self.laid: list[list[Tensor]] = [[] for _ in range(world)]

    def meet(self) -> None:
        try:
            self.meeting.wait(_PATIENCE)
        except threading.BrokenBarrierError:
            raise PeerLost("another rank has raised, or hangs") from None


class ThreadPeers(Peers):
    """A rank of `in_threads`."""

    def __init__(self, rank: int, world: int, tables: Mapping[Group, _Table]) -> None:
        super().__init__(Shard(rank, world))
        self._tables = tables

    def exchange(
        self,
        sends: Sequence[Tensor],
        receives: Sequence[Tensor],
        *,
        kind: str,
        group: Group = "train",
    ) -> None:
        """Exchange buffers with all other ranks."""
        check_buffers(self, sends, receives)
        start, table = time.perf_counter(), self._tables[group]
        table.laid[self.rank] = list(sends)
        table.meet()
        for rank, buffer in enumerate(receives):
            sent = table.laid[rank][self.rank]
            assert sent.shape == buffer.shape, f"{rank} sent {len(sent)} bytes, not {len(buffer)}"
            buffer.copy_(sent)
        table.meet()
        others = sum(len(x) for rank, x in enumerate(sends) if rank != self.rank)
        self.traffic.count(kind, others, time.perf_counter() - start)

    def gather(
        self, mine: Tensor, sizes: Sequence[int], *, kind: str, group: Group = "train"
    ) -> Tensor:
        """Send the chunk to all, and concatenate the received chunks."""
        check_chunks(self, mine, sizes)
        whole = mine.new_empty(sum(sizes)).view(torch.uint8)
        parts = torch.split(whole, [size * mine.element_size() for size in sizes])
        sends = [mine.contiguous().view(torch.uint8)] * self.world
        self.exchange(sends, parts, kind=kind, group=group)
        return whole.view(mine.dtype)

    def broadcast(self, tensor: Tensor, *, kind: str, group: Group = "train") -> None:
        """Return the buffer broadcast by rank 0."""
        table = self._tables[group]
        table.laid[self.rank] = [tensor]
        table.meet()
        tensor.copy_(table.laid[0][0])
        table.meet()


def in_threads(world: int, work: Callable[[ThreadPeers], Answer]) -> list[Answer]:
    """Return the results of `work` on each rank; raises the first error, if any."""
    tables: dict[Group, _Table] = {group: _Table(world) for group in get_args(Group)}

    def run(rank: int) -> Answer:
        try:
            return work(ThreadPeers(rank, world, tables))
        except BaseException:
            for table in tables.values():
                table.meeting.abort()
            raise

    with ThreadPoolExecutor(world) as pool:
        futures = [pool.submit(run, rank) for rank in range(world)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, PeerLost)):
        raise error
    return [future.result() for future in futures]
