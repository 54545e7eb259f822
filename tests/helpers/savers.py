"""Checkpoint stores and writers of all ranks of a world in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from tgflow.base.peers import PARTS, Peers, Shard
from tgflow.checkpoint import Checkpoint, CheckpointStore, CheckpointWriter, WriterStats
from tgflow.checkpoint.checkpoint import part_section
from tgflow.checkpoint.durable.fs import RealFs
from tgflow.checkpoint.sections import put_pieces
from tgflow.ranks.saves import FollowingStore, LeadingStore

PIECE = 4


ALL = range(PARTS)
FEW = (0, 63)
"""Labels of the first and the last rank."""


def filler(step, parts=ALL):
    """Return a function that fills a checkpoint of `step` events with every kind of section."""

    def fill(writer):
        writer.note("step", step)
        writer.put("model", {"w": torch.full((3,), float(step))})
        writer.put("reorder", {"t": torch.rand(2)}, volatile=True)
        for part in parts:
            writer.put_part("memory", part, lambda part=part: {"x": torch.tensor([step, part])})
        events = torch.arange(step)
        put_pieces(writer, "events", PIECE, step, lambda a, b: {"t": events[a:b].clone()})

    return fill


def check(found, step, parts=ALL):
    """Raise unless a step and checkpoint match those of `filler`."""
    assert found[0] == step
    checkpoint = found[1]
    assert checkpoint.meta == {"step": step}
    assert checkpoint.get("model")["w"].tolist() == [step] * 3
    for part in parts:
        assert checkpoint.get(part_section("memory", part))["x"].tolist() == [step, part]
    pieces = [checkpoint.get(f"events-{PIECE}-{i:06d}")["t"] for i in range(step // PIECE)]
    assert torch.cat([*pieces, checkpoint.get("events")["t"]]).tolist() == list(range(step))


class Saver(Peers):
    """A rank of a world whose ranks are threads of this process."""

    def __init__(self, rank: int, world: int, meeting: threading.Barrier, sent: list[Any]) -> None:
        super().__init__(Shard(rank, world))
        self._meeting, self._sent = meeting, sent

    def _collective(self, mine: Any) -> list[Any]:
        """Return what each rank sends."""
        self._sent[self.rank] = mine
        self._meeting.wait(20)
        sent = [*self._sent]
        self._meeting.wait(20)
        return sent

    def exchange(self, sends, receives, *, kind, group="train"):
        for buffers, received in zip(self._collective(sends), receives, strict=True):
            received.copy_(buffers[self.rank])

    def gather(self, mine, sizes, *, kind, group="train"):
        return torch.cat(self._collective(mine))

    def broadcast(self, tensor, *, kind, group="train"):
        tensor.copy_(self._collective(tensor.clone())[0])


class Savers:
    """The writers of all ranks of a world.

    Args:
        directories: Checkpoint directory of each rank.
        fs: File operations of each rank; None: the system's.
        store: Settings of rank 0's `CheckpointStore`.
    """

    def __init__(
        self,
        directories: Iterable[Path],
        fs: Callable[[int], RealFs | None] = lambda rank: None,
        **store: int,
    ) -> None:
        places = [*directories]
        world = len(places)
        meeting, sent = threading.Barrier(world), [None] * world
        self.peers = [Saver(rank, world, meeting, sent) for rank in range(world)]
        self.leader = CheckpointStore(places[0], fs=fs(0), **store)
        self.stores = [
            LeadingStore(self.leader, self.peers[0]),
            *(
                FollowingStore(place, self.peers[rank], fs=fs(rank))
                for rank, place in enumerate(places)
                if rank
            ),
        ]
        self.writers = [CheckpointWriter(store) for store in self.stores]

    def submit(self, step: int, fill: Callable[[Checkpoint], object]) -> None:
        """Start saving the checkpoint of `fill` on all ranks."""
        for peers, writer in zip(self.peers, self.writers, strict=True):
            checkpoint = Checkpoint({}, shard=peers.shard)
            fill(checkpoint)
            writer.wait()
            assert writer.submit(step, checkpoint)

    def save(self, step: int, fill: Callable[[Checkpoint], object]) -> Path | None:
        """Save, and return the path; None if it failed. Raises errors of the writers."""
        self.submit(step, fill)
        stats = self.wait()[0]
        return stats.last_path if stats.last_step == step else None

    def wait(self) -> list[WriterStats]:
        """Return the results of all ranks after pending saves. Raises errors of the writers."""
        return [writer.wait() for writer in self.writers]
