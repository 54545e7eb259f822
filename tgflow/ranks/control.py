"""Control messages between ranks: orders of rank 0, status and requests of all, checksums."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from enum import IntFlag
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from tgflow.base.peers import Peers, RanksDisagree

if TYPE_CHECKING:
    from tgflow.ranks.parcel import Spec

STEP = "step"
"""Name of the payloads, also in `Traffic`."""
CHECKED_EVERY = 100
"""Interval of checksums of the parameters, in payloads; the first one has it."""
ORDER_SPEC: Spec = (torch.int64, (1,))
FIGURES_SPEC: Spec = (torch.float64, (9,))
CHECKSUM_SPEC: Spec = (torch.int64, (1,))


STREAM = "feed"
"""The kind of `Traffic` for the stream broadcast by rank 0."""
_ROWS = ("rows", "memory", "memory queries", "memory rows", "memory clocks", "memory stored")
_QUERIES = ("queries", "answers")
_BESIDE = (STREAM, "json, save")


class Order(IntFlag):
    """Action of all ranks after a micro-batch, ordered by rank 0; or requested by a rank."""

    NONE = 0
    CHECKPOINT = 1
    """Take a snapshot."""
    HOLD = 2
    """Read nothing new from the stream: a rank is short of memory."""
    STOP = 4
    """Stop and save, after a signal."""
    STOP_FOR_MEMORY = 8
    """Stop and save, as a rank reached its memory limit."""


@dataclass(frozen=True, slots=True)
class RankFigures:
    """Status of a rank: 72 bytes to rank 0 with each payload. Totals since its start."""

    compute_seconds: float = 0.0
    """Seconds in forward, backward and optimizer."""
    wait_seconds: float = 0.0
    """Seconds in collectives, except of the stream and of checkpoints: these wait for others."""
    memory_bytes: int = 0
    """Memory of the process now without mapped files, in bytes."""
    free_bytes: int = 0
    """Memory that its machine, control group or limit still has for it; 0: unknown."""
    gradient_bytes: int = 0
    rows_bytes: int = 0
    """Bytes sent for memory rows and the messages stored in them."""
    query_bytes: int = 0
    """Bytes sent for neighbor queries and their answers."""
    other_bytes: int = 0
    request: Order = Order.NONE
    """The order that it requests from rank 0."""

    def to_tensor(self) -> Tensor:
        """Return the status as float64 `[9]`: counts below 2^53 are exact."""
        return torch.tensor([float(each) for each in astuple(self)], dtype=torch.float64)

    @classmethod
    def from_tensor(cls, figures: Tensor) -> Self:
        """Return the status in `figures`, from `to_tensor`. Synchronizes with a device."""
        compute, wait, *counts = figures.tolist()
        memory, free, gradient, rows, queries, other, request = map(int, counts)
        return cls(compute, wait, memory, free, gradient, rows, queries, other, Order(request))


class RankControl:
    """Sends the orders requested by a runner to all ranks.

    A request stands until the runner withdraws it. It reaches rank 0 with this rank's status, and
    returns as the order of a later micro-batch: of the next one, if rank 0 requests it. All ranks
    have the same order after the same micro-batch.
    """

    def __init__(self, peers: Peers, compute_seconds: Callable[[], float]) -> None:
        self._peers, self.compute_seconds = peers, compute_seconds
        self.world = peers.world
        self.request = Order.NONE
        """Orders requested by this rank; set by a runner, from any thread."""
        self.memory_bytes = 0
        """Memory of this process without mapped files; set by a runner."""
        self.free_bytes = 0
        self.order = Order.NONE
        """Order to all ranks after the latest micro-batch."""
        self.figures: Sequence[RankFigures] = ()
        """Status of each rank, as of the latest micro-batch; only on rank 0 of several."""
        self.requests: Sequence[Order] = ()
        """Latest request of each other rank, NONE for this one; only on rank 0 of several."""

    def own_figures(self) -> RankFigures:
        """Return the status of this rank."""
        flows = dict(self._peers.traffic.flows)
        gradient, rows, queries = (
            sum(flows[kind].bytes for kind in kinds if kind in flows)
            for kinds in (("gradient",), _ROWS, _QUERIES)
        )
        other = sum(flow.bytes for flow in flows.values()) - gradient - rows - queries
        waits = sum(x.seconds for kind, x in flows.items() if kind not in _BESIDE)
        memory = self.memory_bytes, self.free_bytes
        sent = gradient, rows, queries, other
        return RankFigures(self.compute_seconds(), waits, *memory, *sent, self.request)

    def begin(self) -> None:
        """Begin a micro-batch, which has no order yet."""
        self.order = self.request if self._peers.world == 1 else Order.NONE

    def set_requests(self, asked: Sequence[int]) -> None:
        """Take the requests of all ranks, with a micro-batch or while no events arrive."""
        obeyed = self.order & Order.CHECKPOINT  # they asked before they had this order
        self.requests = [Order.NONE, *(Order(each) & ~obeyed for each in asked[1:])]

    def requester(self, order: Order) -> str | None:
        """Return the name of another rank with this request, None if none is known."""
        return next(
            (f"rank {rank}" for rank, request in enumerate(self.requests) if order in request), None
        )


def checksum(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the CRC-32 of tensors and their names, int64 `[1]`. Synchronizes with a device."""
    found = 0
    for name, tensor in tensors.items():
        found = zlib.crc32(name.encode(), found)
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        found = zlib.crc32(flat.numpy().data, found)
    return torch.tensor([found])


def check_alike(checksums: Sequence[Tensor], what: str) -> None:
    """Raise if checksums differ between ranks."""
    first, *others = (int(each.item()) for each in checksums)
    wrong = [str(rank) for rank, each in enumerate(others, 1) if each != first]
    if wrong:
        raise RanksDisagree(
            f"{what} of rank {', '.join(wrong)} are not those of rank 0: memory, a library or a "
            "setting differs; the last checkpoint is valid"
        )
