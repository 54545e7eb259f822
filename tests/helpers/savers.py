"""Ranks that save together: stores and writers of a world in this process, over one table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from tgflow.checkpoint import Checkpoint, CheckpointStore, CheckpointWriter, WriterStats
from tgflow.checkpoint.checkpoint import part_section
from tgflow.checkpoint.parts import put_pieces
from tgflow.checkpoint.ranks import FollowingStore, LeadingStore, Notices
from tgflow.durable.fs import RealFs
from tgflow.peers import PARTS, Peers, Shard

PIECE = 4


ALL = range(PARTS)
FEW = (0, 63)
"""Of the first rank, and of the last."""


def filler(step, parts=ALL):
    """Return what puts a state of `step` events into a writer: each kind of section there is."""

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
    """Raise unless a step and checkpoint are those that `filler` has filled."""
    assert found[0] == step
    checkpoint = found[1]
    assert checkpoint.meta == {"step": step}
    assert checkpoint.get("model")["w"].tolist() == [step] * 3
    for part in parts:
        assert checkpoint.get(part_section("memory", part))["x"].tolist() == [step, part]
    pieces = [checkpoint.get(f"events-{PIECE}-{i:06d}")["t"] for i in range(step // PIECE)]
    assert torch.cat([*pieces, checkpoint.get("events")["t"]]).tolist() == list(range(step))


class TableStore:
    """Keys and values, as ranks see them."""

    def __init__(self) -> None:
        self.table: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def set(self, key: str, value: str) -> None:
        with self._lock:
            self.table[key] = value.encode()

    def get(self, key: str) -> bytes:
        with self._lock:
            return self.table[key]

    def check(self, keys: list[str]) -> bool:
        with self._lock:
            return all(key in self.table for key in keys)

    def delete_key(self, key: str) -> bool:
        with self._lock:
            return self.table.pop(key, None) is not None


class Saver(Peers):
    """A rank that sends nothing: it saves."""

    def __init__(self, rank: int, world: int) -> None:
        super().__init__(Shard(rank, world))
        self.gone: set[int] = set()

    def is_gone(self, rank: int) -> bool:
        return rank in self.gone


class Savers:
    """The writers of all ranks of a world.

    Args:
        directories: Where each rank sees the checkpoints; one for each rank.
        fs: File operations of each rank; None: the system's.
        timeout: As `LeadingStore`.
        store: Settings of rank 0's `CheckpointStore`.
    """

    def __init__(
        self,
        directories: Iterable[Path],
        fs: Callable[[int], RealFs | None] = lambda rank: None,
        timeout: float = 20.0,
        **store: int,
    ) -> None:
        places, self.keys = [*directories], TableStore()
        self.peers = [Saver(rank, len(places)) for rank in range(len(places))]
        notices = [Notices(self.keys, each, "checkpoint/") for each in self.peers]
        self.leader = CheckpointStore(places[0], fs=fs(0), **store)
        self.stores = [
            LeadingStore(self.leader, notices[0], timeout),
            *(
                FollowingStore(place, notices[rank], fs=fs(rank))
                for rank, place in enumerate(places)
                if rank
            ),
        ]
        self.writers = [CheckpointWriter(store) for store in self.stores]

    def submit(self, step: int, fill: Callable[[Checkpoint], object]) -> None:
        """Have all ranks begin to save what `fill` puts into a checkpoint."""
        for peers, writer in zip(self.peers, self.writers, strict=True):
            checkpoint = Checkpoint({}, shard=peers.shard)
            fill(checkpoint)
            writer.wait()
            assert writer.submit(step, checkpoint)

    def save(self, step: int, fill: Callable[[Checkpoint], object]) -> Path | None:
        """Save, and return where; None if it has failed. Raises what a writer does."""
        self.submit(step, fill)
        stats = self.wait()[0]
        return stats.last_path if stats.last_step == step else None

    def wait(self) -> list[WriterStats]:
        """Return what all ranks have done, once nothing is under way. Raises what a writer does."""
        return [writer.wait() for writer in self.writers]
