"""A block store in memory as kernels read it, made in plain Python with blocks of any sizes."""

from __future__ import annotations

import random

import torch
from torch import Tensor

CHUNK_BITS, PLACE_BITS, CHUNK_SIZE = 21, 48, 1 << 17
History = list[tuple[int, int, int]]
"""A node's entries (t, eid, neighbor), in order."""


class MadeStore:
    """Blocks in shuffled chunks, directories with room to spare and with blocks still unpublished.

    Args:
        histories: Per node, what all cut-offs see, or those from `changed_at` on.
        position: The log position that is published.
        older: Per changed node, `changed_at` and what the cut-offs below see.
        max_block: Entries of a block at most.
        seed: Of the sizes of blocks.
        labels: Per event, its type.
    """

    def __init__(
        self,
        histories: dict[int, History],
        position: int,
        older: dict[int, tuple[int, History]] | None = None,
        max_block: int = 40,
        seed: int = 0,
        labels: Tensor | None = None,
    ) -> None:
        self._random = random.Random(seed)
        self._max_block = max_block
        self._kept: list[Tensor] = []
        self._chunks = [torch.full((CHUNK_SIZE, 2), -7) for _ in range(3)]
        self._used = [0] * len(self._chunks)
        heads = torch.zeros(1 + max(histories, default=-1), dtype=torch.int64)
        for v, history in histories.items():
            version = 0
            if older is not None and v in older:
                changed_at, past = older[v]
                version = self._keep(torch.tensor([changed_at, 1, self._directory(past, 0), 0]))
            heads[v] = self._directory(history, version)
        chunks = self._keep(torch.tensor([chunk.data_ptr() for chunk in self._chunks]))
        tiers = self._keep(torch.tensor([0, 1, 0], dtype=torch.uint8))
        types = 0 if labels is None else self._keep(labels.to(torch.uint16))
        view = [self._keep(heads), len(heads), chunks, tiers, types, 1, 0, 0, 0]
        self.snapshot = torch.tensor([*view, position])
        """The struct `Snapshot`, int64 `[10]`."""

    def _keep(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()

    def _directory(self, history: History, version: int) -> int:
        rows = []
        start = 0
        while start < len(history):
            size = self._random.randint(1, self._max_block)
            rows.append(self._block(history[start : start + size], start))
            start += size
        if self._random.random() < 0.3:  # linked by an insert that has not published its entries
            rows.append([self._place(5), 2**40, 2**60, len(history)])
        num_blocks, room = len(rows), len(rows) + self._random.randint(0, 2)
        rows += [[-1, -1, -1, -1]] * (room - num_blocks)
        header = [len(history), num_blocks | room << 32, version, -9]
        return self._keep(torch.tensor([header, *rows]))

    def _block(self, part: History, start: int) -> list[int]:
        place = self._place(len(part) + self._random.randint(0, 3))
        base = min(eid for _, eid, _ in part)
        chunk, offset = place >> CHUNK_BITS & 0xFF, place & (1 << CHUNK_BITS) - 1
        words = [(t, nbr | eid - base << 32) for t, eid, nbr in part]
        self._chunks[chunk][offset : offset + len(part)] = torch.tensor(words)
        return [place, base, part[0][0], start]

    def _place(self, capacity: int) -> int:
        chunk = self._random.randrange(len(self._chunks))
        offset = self._used[chunk]
        self._used[chunk] += capacity
        assert self._used[chunk] <= CHUNK_SIZE
        return capacity << PLACE_BITS | chunk << CHUNK_BITS | offset
