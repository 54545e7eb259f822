"""A table with a cache in front of it: one interface, the same bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tgflow.cache.contents import POLICIES, CacheCounters, CacheSchedule, CacheSnapshot, Policy
from tgflow.cache.host import HostCache
from tgflow.describe import described
from tgflow.tables.feature_table import FeatureTable
from tgflow.tables.table import PendingGather, Table, check_ids, name_of, out_for
from tgflow.units import parse_bytes

if TYPE_CHECKING:
    from tgflow.cache.device import DeviceCache
    from tgflow.cuda.device import Device

_SLOT_BYTES = 144
"""Bytes of index and order per row, at most."""


@described
class CachedTable:
    """Rows of a table, of which the cache in front holds some. Made by `tgflow.cache.cached`.

    What is read is byte-equal to the table, always: `append`, `scatter_` and `truncate`, which are
    to be called here and not on the table itself, change the cache as well.
    Contents stay from one round of a continual run to the next (GNNFlow's *reuse*, SoCC 2024);
    `restored` gives an evaluation pass its own (its *restore*).

    Any number of threads may gather at once, and take turns: so contents and counters depend on
    which comes first; the rows never do.

    Example:
        >>> rows = tg.tables.FeatureTable.from_tensor(torch.eye(4), placement="disk")
        >>> table = tg.cache.cached(rows, rows=2)
        >>> _ = table.gather(torch.tensor([1, 1, 3]))
        >>> table.counters.misses, table.contents().tolist()
        (2, [1, 3])
    """

    def __init__(
        self, table: FeatureTable, engine: HostCache | DeviceCache, policy: Policy
    ) -> None:
        self.table = table
        """The table behind the cache."""
        self.policy: Policy = policy
        self._engine = engine
        self._change = threading.Lock()

    def __len__(self) -> int:
        return len(self.table)

    def _facts(self) -> dict[str, object]:
        return {
            "num_rows": len(self),
            "dim": self.dim,
            "dtype": name_of(self.dtype),
            "placement": self.placement,
            "policy": self.policy,
            "capacity": self.capacity,
            "hit_rate": self.counters.hit_rate,
        }

    @property
    def dim(self) -> int:
        """Width of a row."""
        return self.table.dim

    @property
    def dtype(self) -> torch.dtype:
        """What its elements are."""
        return self.table.dtype

    @property
    def placement(self) -> str:
        """Where the table has its rows."""
        return self.table.placement

    @property
    def base(self) -> Table:
        """The table that has the rows."""
        return self.table.base

    @property
    def file(self) -> Path | None:
        """The file of the table behind the cache."""
        return self.table.file

    def describe(self) -> dict[str, Any]:
        """Return what the table says of itself, and of the cache; synchronizes with a GPU."""
        counts = self.counters
        cache = {
            "policy": self.policy,
            "capacity": self.capacity,
            "memory_bytes": self.cache_nbytes,
            "hits": counts.hits,
            "misses": counts.misses,
            "hit_rate": counts.hit_rate if counts.hits + counts.misses else None,
            "bytes_from_table": counts.bytes_from_table,
        }
        return self.table.describe() | {"cache": cache}

    @property
    def gpu(self) -> Device | None:
        """The GPU that the cache is on; None: in host memory."""
        return self._engine.gpu

    def reading(self) -> AbstractContextManager[object]:
        """Enclose the replay of captured gathers, which take turns with all others by this."""
        return self._engine.changing()

    @property
    def capacity(self) -> int:
        """Rows that the cache can hold."""
        return self._engine.capacity

    @property
    def cache_nbytes(self) -> int:
        """Bytes that the cache holds: rows, index and order."""
        return self._engine.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes that the table and the cache hold."""
        return self.table.nbytes + self.cache_nbytes

    def check(self, rows: Tensor) -> None:
        """Raise ValueError unless `rows` could be appended."""
        self.table.check(rows)

    def append(self, rows: Tensor) -> int:
        """Add rows to the table, and write them through to the cache; return the first one's id.

        A live stream has no future that could be planned for, and its newest rows are asked for
        next: under all policies but "static" and "belady", which keep what they hold, the last
        `capacity` of them come in as rows admitted just now, in the order of their ids, and are
        not read from the table. Gathers continue meanwhile; other changes wait.

        Raises:
            MemoryError, OSError, ValueError: As `FeatureTable.append`; nothing has changed then.
        """
        with self._change:
            first = self.table.append(rows)
            try:
                self._engine.append(first, rows)
            except BaseException:
                self._take_back(first)
                raise
            return first

    def read(self, start: int, stop: int) -> Tensor:
        """Return neighboring rows on the CPU, as the table does; past the cache."""
        return self.table.read(start, stop)

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows of `ids`, int64 of any shape `[...]`, as `[..., dim]` on their device.

        As `FeatureTable.gather`: -1 gives zeros, and errors are the same. Of the distinct ids, all
        are looked up first; then those that were missing are admitted in order of appearance, as
        many as the rows that this gather did not find can make room for.

        Raises:
            ValueError: If `ids` or `out` has another dtype or shape, or they are not together.
            IndexError: If an id is not below `len(self)`.
        """
        ids, out = self._checked(ids, out)
        if ids.numel() > 0:
            self._engine.gather(ids, out)
        return out

    def __getitem__(self, ids: Tensor) -> Tensor:
        """Return `gather(ids)`."""
        return self.gather(ids)

    def apply(
        self,
        schedule: CacheSchedule,
        ids: Tensor,
        out: Tensor | None = None,
        *,
        missed: PendingGather | None = None,
    ) -> Tensor:
        """Gather as `gather` does, and make the moves of a schedule; of policy "belady".

        Schedules are applied one after the other in the order in which they were planned, from any
        threads; other gathers at the same time change nothing that they count on.

        Args:
            schedule: What was planned.
            ids: As `gather`.
            out: As `gather`.
            missed: What `start` returned for this schedule, if it was called.

        Raises:
            ScheduleMismatch: If the distinct ids are not the schedule's, or the contents are not as
                planned. Nothing has changed then.
            ValueError: If the policy is another.
        """
        engine = self._planned()
        ids, out = self._checked(ids, out)
        engine.apply(schedule, ids, out, missed)
        return out

    def start(self, schedule: CacheSchedule) -> PendingGather | None:
        """Begin to read what a schedule will miss, before its turn; None where that is of no use.

        It is of use for a table on disk, whose rows come meanwhile and never change.
        """
        return self._planned().start(schedule)

    def _planned(self) -> HostCache:
        if self.policy != "belady":
            raise ValueError(f'schedules are for policy="belady", this cache has {self.policy!r}')
        assert isinstance(self._engine, HostCache)
        return self._engine

    def preload(self, ids: Tensor) -> None:
        """Bring rows in before anyone asks for them, under "static" the only way to do so.

        As a gather that returns nothing, reads only what it admits and counts no hits or misses.

        Args:
            ids: int64 of any shape; the first distinct ones that fit are held afterwards.
        """
        check_ids(ids)
        if ids.numel() > 0:
            self._engine.preload(ids.contiguous())

    def scatter_(self, ids: Tensor, rows: Tensor) -> None:
        """Overwrite rows in the table and in the cache, as `FeatureTable.scatter_`.

        Waits for gathers under way; later ones wait for it.
        """
        with self._change, self._engine.changing():
            try:
                self.table.scatter_(ids, rows)
            except (OSError, MemoryError):
                self._engine.truncate(0)  # nobody knows which rows have changed
                raise
            self._engine.write(ids, rows)

    def truncate(self, size: int) -> None:
        """Remove the rows from id `size` on, which nobody may know yet."""
        with self._change:
            self._take_back(size)

    def _take_back(self, size: int) -> None:
        with self._engine.changing():
            self.table.truncate(size)
            self._engine.truncate(size)

    def close(self) -> None:
        """Give back the table and what is cached of it."""
        with self._change, self._engine.changing():
            self._engine.truncate(0)
            self.table.close()

    def contents(self) -> Tensor:
        """Return the id in each slot, -1 for none, int64 `[capacity]` on the CPU."""
        return self._engine.snapshot().ids

    def snapshot(self) -> CacheSnapshot:
        """Return what is held and how it is ranked: 16 bytes a slot."""
        return self._engine.snapshot()

    def restore(self, snapshot: CacheSnapshot) -> None:
        """Hold again what a snapshot names, as far as the table still has it.

        It may be of another cache of this policy, as what a checkpoint brings back is. Rows that
        are not there are read from the table, in one batch, as they are now.

        Raises:
            ValueError: If the snapshot is of a cache with another capacity.
        """
        if len(snapshot.ids) != self.capacity:
            raise ValueError(
                f"the snapshot is of a cache of {len(snapshot.ids)} rows, this one has "
                f"{self.capacity}"
            )
        with self._change:  # or rows that are just taken back would be asked for
            self._engine.restore(snapshot)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Enclose a pass, such as an evaluation, after which the contents are as before it."""
        snapshot = self.snapshot()
        try:
            yield
        finally:
            self.restore(snapshot)

    @property
    def counters(self) -> CacheCounters:
        """What was counted since the last reset. Synchronizes with a GPU."""
        return self._engine.counters()

    def reset_counters(self) -> None:
        """Count from 0."""
        self._engine.reset_counters()

    def _checked(self, ids: Tensor, out: Tensor | None) -> tuple[Tensor, Tensor]:
        check_ids(ids)
        out = out_for(ids, out, self.dim, self.dtype)
        return ids.contiguous(), out


def cache_of(table: Table) -> CachedTable | None:
    """Return the cache through which `table` is read: itself, if it is one."""
    return table if isinstance(table, CachedTable) else None


def cached(
    table: FeatureTable,
    *,
    rows: int | None = None,
    bytes: int | str | None = None,
    share: float | None = None,
    policy: Policy | None = None,
    device: str | torch.device | Device | None = None,
) -> CachedTable:
    """Put a cache in front of a table; exactly one of `rows`, `bytes` and `share` is its size.

    Args:
        table: Any table; from here on changed through the cache alone.
        rows: Rows to hold; 0 and more than the table has are fine.
        bytes: What rows, index and order may take, as a number or text such as "64MiB".
        share: Of the rows that the table has now.
        policy: "lru": the row used longest ago makes room. "lfu": the one used least, counts being
            halved after every 4 * rows admissions. "fifo": the one that came first. "static": none,
            only `preload` brings rows in. "belady": `apply` does as a planner says, and `gather`
            admits nothing. These are for host memory, by default "lru". "clock", the only one on a
            GPU: in sets of 8 slots, the next row not used since the hand passed it makes room.
        device: Where the cache is: None for host memory; "cuda", "cuda:1" or any
            `tgflow.cuda.device.Device` for a GPU's, whose gathers take and return tensors there.

    Raises:
        CudaError: If the GPU cannot be used; the message says what is missing.
        ValueError: If an argument is none of these, or the cache would be in host memory and the
            rows of the table are in memory and stay there.

    Example:
        >>> rows = tg.tables.FeatureTable.from_tensor(torch.eye(4), placement="disk")
        >>> table = tg.cache.cached(rows, share=0.5, policy="lfu")
        >>> table.capacity
        2
    """
    on_host = device is None or (
        isinstance(device, str | torch.device) and torch.device(device).type == "cpu"
    )
    if policy is None:
        policy = "lru" if on_host else "clock"
    if policy not in (*POLICIES, "clock"):
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {policy!r}")
    if (policy == "clock") == on_host:
        raise ValueError(
            f"policy={policy!r} is for a cache {'on a GPU' if on_host else 'in host memory'}; "
            f"use policy={'lru' if on_host else 'clock'!r}, or leave it out"
        )
    capacity = _capacity(table, rows, bytes, share)
    if on_host and isinstance(table, FeatureTable) and table.stays_in_memory:
        raise ValueError(
            f'a cache in host memory slows reads of a table with placement="{table.placement}" '
            '(0.41x to 0.91x); read the table itself, put it on disk with placement="disk", or '
            'give the cache a GPU with device="cuda"'
        )
    if on_host:
        return CachedTable(table, HostCache(table, capacity, policy), policy)
    from tgflow.cache.device import DeviceCache
    from tgflow.cuda.device import Device

    if isinstance(device, str | torch.device):
        device = Device(torch.device(device))
    assert device is not None
    return CachedTable(table, DeviceCache(table, capacity, device), policy)


def _capacity(
    table: FeatureTable, rows: int | None, bytes: int | str | None, share: float | None
) -> int:
    if sum(size is not None for size in (rows, bytes, share)) != 1:
        raise ValueError("a cache has one size: give rows, bytes or share")
    if bytes is not None:
        return parse_bytes(bytes) // (table.dim * table.dtype.itemsize + _SLOT_BYTES)
    if share is not None:
        if not 0 <= share <= 1:
            raise ValueError(f"share must be between 0 and 1, got {share}")
        return round(share * len(table))
    assert rows is not None
    if rows < 0:
        raise ValueError(f"rows must be at least 0, got {rows}")
    return rows
