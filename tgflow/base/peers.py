"""Ranks that train together, and the ids that each of them owns.

A *rank* is a process of a *world*. `Peers` is the world of one process, which sends nothing, and
the base class of larger worlds, which `tgflow.ranks` provides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, overload

from tgflow.base.describe import described

if TYPE_CHECKING:  # the launcher of ranks does not import torch
    from torch import Tensor

PARTS = 64
"""Number of parts that ids are divided into, for any world: part = id % PARTS. A rank owns whole
parts, so another world moves parts and splits none. Also the largest world."""

Group = Literal["train", "plan", "feed", "save"]
"""Groups of collectives; those of a group have one order, and one calling thread per rank."""


class PeerLost(RuntimeError):
    """Raised when another rank ended, hangs, or is unreachable; this one must restart."""


class WorldError(ValueError):
    """Raised for an invalid world: too large, or of ranks with different arguments."""


class RanksDisagree(RuntimeError):
    """Raised when ranks that must hold or send the same data differ; later results are invalid."""


@described
@dataclass(frozen=True, slots=True)
class Shard:
    """The ids that a rank owns: rank = (id % PARTS) * world // PARTS.

    Dense ids, assigned in order of appearance, are spread evenly: parts differ by one id, ranks by
    one part. Owned ids have *local* ids, which are dense and in the order of the ids.

    Example:
        >>> shard = Shard(rank=1, world=2)  # parts 32 to 63
        >>> shard.local(torch.tensor([32, 63, 96])).tolist()
        [0, 31, 32]

    Raises:
        WorldError: If `world` is not from 1 to `PARTS`, or `rank` not below it.
    """

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.world <= PARTS:
            raise WorldError(f"a world has 1 to {PARTS} ranks, got {self.world}; start fewer")
        if not 0 <= self.rank < self.world:
            raise WorldError(f"rank must be from 0 to {self.world - 1}, got {self.rank}")

    @property
    def parts(self) -> range:
        """The parts that this rank owns, at least one."""
        first, stop = (-(-rank * PARTS // self.world) for rank in (self.rank, self.rank + 1))
        return range(first, stop)

    @overload
    def owner(self, ids: int) -> int: ...
    @overload
    def owner(self, ids: Tensor) -> Tensor: ...
    def owner(self, ids: int | Tensor) -> int | Tensor:
        """Return the rank of each id, each at least 0: int64 of the shape of `ids`."""
        return ids % PARTS * self.world // PARTS

    def owns(self, ids: Tensor) -> Tensor:
        """Return whether this rank owns each id: bool of the shape of `ids`, False below 0."""
        return (self.owner(ids) == self.rank) & (ids >= 0)

    def local(self, ids: Tensor) -> Tensor:
        """Return the local ids of owned ids, int64 of the shape of `ids`."""
        parts = self.parts
        return ids // PARTS * len(parts) + ids % PARTS - parts.start

    def ids(self, local: Tensor) -> Tensor:
        """Return the ids of local ids, the inverse of `local`."""
        parts = self.parts
        return local // len(parts) * PARTS + local % len(parts) + parts.start

    def count(self, num_ids: int) -> int:
        """Return the number of ids below `num_ids` that this rank owns."""
        whole, rest = divmod(num_ids, PARTS)
        parts = self.parts
        return whole * len(parts) + min(max(rest - parts.start, 0), len(parts))


@dataclass(slots=True)
class Flow:
    """Cost of this rank's collectives of one kind."""

    calls: int = 0
    bytes: int = 0
    """Bytes sent to other ranks, without those kept by this rank."""
    seconds: float = 0.0
    """Duration of the calls, mostly spent waiting for others."""


@dataclass(slots=True)
class Traffic:
    """Bytes sent and time waited by a rank so far, by kind. A kind belongs to one thread."""

    flows: dict[str, Flow] = field(default_factory=dict)

    def count(self, kind: str, num_bytes: int, seconds: float) -> None:
        """Count one call that sent `num_bytes` and took `seconds`."""
        flow = self.flows.setdefault(kind, Flow())
        flow.calls += 1
        flow.bytes += num_bytes
        flow.seconds += seconds

    def itemize(self, kind: str, num_bytes: Mapping[str, int]) -> None:
        """Count bytes that a call of `kind` sent under kinds of their own instead."""
        for name, size in num_bytes.items():
            self.flows.setdefault(name, Flow()).bytes += size
            self.flows[kind].bytes -= size


@described
class Peers:
    """The ranks of a world, including this one; this class is the world of one process.

    Every rank calls the same collectives of a group in the same order, with the sizes that it
    receives: sizes that differ between ranks may end the process. Tensors are on the CPU, or all on
    this rank's device, from which they are sent. Collectives wait for the other
    ranks; a world of one sends and counts nothing.

    Every call raises:
        PeerLost: If another rank is gone or hangs; after the first such call, at once.
        ValueError: If arguments do not match the world or each other; nothing was sent.

    Example:
        >>> peers = tg.join()
        >>> peers.rank, peers.world
        (0, 1)
    """

    def __init__(self, shard: Shard | None = None) -> None:
        self.shard = Shard() if shard is None else shard
        """Ids that this rank owns."""
        self.rank, self.world = self.shard.rank, self.shard.world
        """This rank, rank 0 being the leader, and the number of ranks."""
        self.traffic = Traffic()
        """Bytes sent and time waited so far."""
        self.failure: PeerLost | None = None
        """Reason why nothing can be sent any more; None while it can."""

    def _facts(self) -> dict[str, object]:
        return {"rank": self.rank, "world": self.world}

    def exchange(
        self,
        sends: Sequence[Tensor],
        receives: Sequence[Tensor],
        *,
        kind: str,
        group: Group = "train",
    ) -> None:
        """Send a buffer to each rank, and fill one from each: an all-to-all.

        Args:
            sends: uint8 `[n]` for each rank, this one included; any may be empty.
            receives: uint8 `[n]` from each rank, contiguous; written to.
            kind: Kind in `traffic`.
            group: Group of collectives.
        """
        check_buffers(self, sends, receives)
        receives[0].copy_(sends[0])

    def gather(
        self, mine: Tensor, sizes: Sequence[int], *, kind: str, group: Group = "train"
    ) -> Tensor:
        """Return the chunks of all ranks, one after the other: an all-gather.

        Args:
            mine: This rank's chunk, any dtype, `[sizes[rank]]`.
            sizes: Elements of each rank's chunk; any may be 0.
            kind: Kind in `traffic`.
            group: Group of collectives.

        Returns:
            `[sum(sizes)]` of the dtype and device of `mine`.
        """
        check_chunks(self, mine, sizes)
        return mine.clone()

    def broadcast(self, tensor: Tensor, *, kind: str, group: Group = "train") -> None:
        """Overwrite `tensor`, contiguous, by rank 0's.

        Args:
            tensor: Any shape and dtype, the same on all ranks; read on rank 0.
            kind: Kind in `traffic`.
            group: Group of collectives.
        """

    def close(self) -> None:
        """Leave the world without waiting; nothing can be sent afterwards."""


def check_buffers(peers: Peers, sends: Sequence[Tensor], receives: Sequence[Tensor]) -> None:
    """Raise ValueError for wrong arguments of `Peers.exchange`."""
    import torch

    for name, buffers in (("sends", sends), ("receives", receives)):
        if len(buffers) != peers.world:
            raise ValueError(
                f"{name} must have one buffer for each of {peers.world} ranks, got {len(buffers)}"
            )
        for rank, buffer in enumerate(buffers):
            if buffer.dtype != torch.uint8 or buffer.ndim != 1 or not buffer.is_contiguous():
                raise ValueError(
                    f"{name}[{rank}] must be a contiguous uint8 [n], got {buffer.dtype} "
                    f"{list(buffer.shape)}; take tensor.view(torch.uint8)"
                )
    sent, received = len(sends[peers.rank]), len(receives[peers.rank])
    if sent != received:
        raise ValueError(f"rank {peers.rank} sends itself {sent} bytes and receives {received}")


def check_chunks(peers: Peers, mine: Tensor, sizes: Sequence[int]) -> None:
    """Raise ValueError for wrong arguments of `Peers.gather`."""
    if len(sizes) != peers.world:
        raise ValueError(f"sizes must have one for each of {peers.world} ranks, got {len(sizes)}")
    if mine.shape != (sizes[peers.rank],):
        raise ValueError(
            f"mine must have the shape [{sizes[peers.rank]}] that sizes has for rank "
            f"{peers.rank}, got {list(mine.shape)}"
        )
