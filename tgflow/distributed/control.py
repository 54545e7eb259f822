"""Control messages between ranks: orders of rank 0, figures and requests of all, checksums."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from enum import IntFlag
from typing import Self

import torch
from torch import Tensor

from tgflow.distributed.parcel import Spec
from tgflow.peers import RanksDisagree, Traffic

STEP = "step"
"""What parcels are called, also in `Traffic`."""
CHECKED_EVERY = 100
"""Parcels from one that has a checksum of the parameters to the next one; the first has it."""
ORDER_SPEC: Spec = (torch.int64, (1,))
FIGURES_SPEC: Spec = (torch.float64, (8,))
CHECKSUM_SPEC: Spec = (torch.int64, (1,))


STREAM = "feed"
"""The kind of `Traffic` that brings the stream from rank 0."""
_ROWS = ("rows", "memory", "memory queries", "memory rows", "memory clocks", "memory stored")
_QUERIES = ("queries", "answers")


class Order(IntFlag):
    """What all ranks do after a micro-batch, by the word of rank 0; or what a rank asks it for."""

    NONE = 0
    CHECKPOINT = 1
    """Snapshot here."""
    HOLD = 2
    """Take nothing new from the stream: memory is short somewhere."""
    STOP = 4
    """End with what is learned kept: a signal."""
    STOP_FOR_MEMORY = 8
    """End with what is learned kept: a rank is at its memory limit."""

    def to_tensor(self) -> Tensor:
        """Return it as int64 `[1]`."""
        return torch.tensor([int(self)])

    @classmethod
    def from_tensor(cls, word: Tensor) -> Order:
        """Return what `to_tensor` made into `word`. Waits for a device that has it."""
        return cls(int(word.item()))


@dataclass(frozen=True, slots=True)
class RankFigures:
    """How one rank is: 64 bytes to rank 0 with each parcel. All count from its start."""

    compute_seconds: float = 0.0
    """In forward, backward and optimizer."""
    wait_seconds: float = 0.0
    """In collectives, but those of the stream, which waits for events."""
    memory_bytes: int = 0
    """That its process holds now."""
    gradient_bytes: int = 0
    """Sent of gradients."""
    rows_bytes: int = 0
    """Sent of memory, and of what is stored in it."""
    query_bytes: int = 0
    """Sent of queries for neighbors, and of answers."""
    other_bytes: int = 0
    """Sent of all else."""
    asks: Order = Order.NONE
    """What it would have rank 0 order."""

    @classmethod
    def of(
        cls, traffic: Traffic, *, compute_seconds: float, memory_bytes: int, asks: Order
    ) -> Self:
        """Return the figures of this rank."""
        flows = dict(traffic.flows)
        gradient, rows, queries = (
            sum(flows[kind].bytes for kind in kinds if kind in flows)
            for kinds in (("gradient",), _ROWS, _QUERIES)
        )
        return cls(
            compute_seconds=compute_seconds,
            wait_seconds=sum(flow.seconds for kind, flow in flows.items() if kind != STREAM),
            memory_bytes=memory_bytes,
            gradient_bytes=gradient,
            rows_bytes=rows,
            query_bytes=queries,
            other_bytes=sum(flow.bytes for flow in flows.values()) - gradient - rows - queries,
            asks=asks,
        )

    def to_tensor(self) -> Tensor:
        """Return them as float64 `[8]`: counts below 2^53 are exact."""
        return torch.tensor([float(each) for each in astuple(self)], dtype=torch.float64)

    @classmethod
    def from_tensor(cls, figures: Tensor) -> Self:
        """Return what `to_tensor` made into `figures`. Waits for a device that has it."""
        compute, wait, *counts = figures.tolist()
        memory, gradient, rows, queries, other, asks = map(int, counts)
        return cls(compute, wait, memory, gradient, rows, queries, other, Order(asks))


def decide(own: Order, everyone: Iterable[RankFigures]) -> Order:
    """Return what rank 0 orders: what it wants itself, and whatever any rank asks for."""
    for figures in everyone:
        own |= figures.asks
    return own


def checksum(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the CRC-32 of tensors and their names, int64 `[1]`. Waits for a device."""
    found = 0
    for name, tensor in tensors.items():
        found = zlib.crc32(name.encode(), found)
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        found = zlib.crc32(flat.numpy().data, found)
    return torch.tensor([found])


def check_alike(checksums: Sequence[Tensor], what: str) -> None:
    """Refuse ranks that hold different things."""
    first, *others = (int(each.item()) for each in checksums)
    wrong = [str(rank) for rank, each in enumerate(others, 1) if each != first]
    if wrong:
        raise RanksDisagree(
            f"{what} of rank {', '.join(wrong)} are not those of rank 0: memory, a library or a "
            "setting differs; the last checkpoint stands"
        )
