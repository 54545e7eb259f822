"""What holds a cache's rows, on the CPU or on a GPU."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from tgflow.cache.counters import CacheCounters
from tgflow.cache.schedule import CacheSchedule
from tgflow.tables.pending_gather import PendingGather
from tgflow.tables.protocols import Table

if TYPE_CHECKING:
    from tgflow.cuda.device import Device
    from tgflow.tables.gpu_rows import GpuView


class CachedSource(Table, Protocol):
    """What a cache reads rows from: a `FeatureTable`, or what reads and grows as one."""

    @property
    def view(self) -> GpuView | None:
        """What a GPU's kernels read; None where they cannot."""

    def scatter_(self, ids: Tensor, rows: Tensor) -> None:
        """Overwrite rows."""

    def start_gather(self, ids: Tensor, out: Tensor | None = None) -> PendingGather:
        """Begin to gather rows on the CPU."""


@dataclass(frozen=True, slots=True, eq=False)
class CacheSnapshot:
    """Which rows a cache held, and how they were ranked: not the rows, which their table has.

    Args:
        ids: The id in each slot, -1 for none, int64 `[capacity]`, on the CPU.
        keys: What slots are ranked by, int64 `[capacity]`, on the CPU.
    """

    ids: Tensor
    keys: Tensor


class Engine(Protocol):
    """The index and the rows of a cache. Ids are checked for dtype and contiguous."""

    capacity: int

    @property
    def nbytes(self) -> int:
        """Bytes held: rows, index and order."""

    def gather(self, ids: Tensor, out: Tensor) -> None:
        """Fill `out` with the rows of `ids`, both on one device."""

    def start(self, schedule: CacheSchedule) -> PendingGather | None:
        """Begin to read what a schedule will miss; None where the engine reads it in its turn."""

    def apply(
        self, schedule: CacheSchedule, ids: Tensor, out: Tensor, missed: PendingGather | None = None
    ) -> None:
        """Gather, and do with the contents what the schedule says.

        Args:
            schedule: What was planned.
            ids: As `gather`.
            out: As `gather`.
            missed: What `start` returned for the schedule.
        """

    def preload(self, ids: Tensor) -> None:
        """Admit rows that nobody has asked for."""

    def append(self, first: int, rows: Tensor) -> None:
        """Admit the last of the rows that the table has just been given, id `first` and on."""

    @property
    def gpu(self) -> Device | None:
        """The GPU that it is on; None: in host memory."""

    def changing(self) -> AbstractContextManager[None]:
        """Enclose a change of the table: gathers before it are done, later ones wait."""

    def write(self, ids: Tensor, rows: Tensor) -> None:
        """Overwrite those of the rows that are held. While changing."""

    def truncate(self, size: int) -> None:
        """Forget the ids from `size` on. While changing."""

    def snapshot(self) -> CacheSnapshot:
        """Return what is held."""

    def restore(self, snapshot: CacheSnapshot) -> None:
        """Hold that again, as far as the table has it."""

    def counters(self) -> CacheCounters:
        """Return what was counted since the last reset."""

    def reset_counters(self) -> None:
        """Count from 0."""
