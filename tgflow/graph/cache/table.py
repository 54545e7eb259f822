"""A table with a cache in front: same interface, same bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tgflow.base.describe import described
from tgflow.base.units import parse_bytes
from tgflow.graph.cache.contents import (
    POLICIES,
    CacheCounters,
    CacheSchedule,
    CacheSnapshot,
    Policy,
)
from tgflow.graph.cache.host import HostCache
from tgflow.graph.tables.feature_table import FeatureTable
from tgflow.graph.tables.table import PendingGather, Table, TableInFront, check_ids, out_for

if TYPE_CHECKING:
    from tgflow.cuda.device import Device
    from tgflow.graph.cache.device import DeviceCache

_SLOT_BYTES = 144
"""Upper bound on the bytes of index and order per row."""


@described
class CachedTable(TableInFront):
    """A table with a cache of some of its rows in front. Made by `tgflow.graph.cache.cached`.

    Reads are always byte-equal to the table. Call `append` and `truncate` on this object, not on
    the table itself, whose rows must not change: they update the cache as well. Contents stay from
    one round of a continual run to the next (GNNFlow's *reuse*, SoCC 2024); `restored` gives an
    evaluation pass contents of its own (its *restore*).

    Any number of threads may gather concurrently; they take turns, so contents and counters
    depend on their order, the returned rows never do.

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
        self.table: FeatureTable = table
        """The table behind the cache."""
        self.policy: Policy = policy
        self._engine = engine
        self._change = threading.Lock()

    def __len__(self) -> int:
        return len(self.table)

    def _facts(self) -> dict[str, object]:
        return {
            **self.table._facts(),
            "policy": self.policy,
            "capacity": self.capacity,
            "hit_rate": self.counters.hit_rate,
        }

    @property
    def file(self) -> Path | None:
        """The file of the table behind the cache."""
        return self.table.file

    def describe(self) -> dict[str, Any]:
        """Return the description of the table and of the cache; synchronizes with a GPU."""
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
        """The GPU that holds the cache; None: host memory."""
        return self._engine.gpu

    def reading(self) -> AbstractContextManager[object]:
        """Enclose the replay of captured gathers, which serializes it with all others."""
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
        """Raise ValueError unless `rows` can be appended."""
        self.table.check(rows)

    def append(self, rows: Tensor) -> int:
        """Add rows to the table, and write them through to the cache; return the first one's id.

        A live stream cannot be planned for, and its newest rows are read next. Under all policies
        but "static" and "belady", which keep their contents, the last `capacity` of the new rows
        are admitted as if just read, in the order of their ids, without reading them from the
        table. Concurrent gathers continue; other changes wait. Errors are those of the table.
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
        """Return consecutive rows on the CPU, as the table does; bypasses the cache."""
        return self.table.read(start, stop)

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows of `ids`, int64 of any shape `[...]`, as `[..., dim]` on their device.

        As `FeatureTable.gather`: -1 gives zeros, and errors are the same. All distinct ids are
        looked up first; then the misses are admitted in order of appearance, as many as fit without
        evicting a row that this gather found.
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
        """Gather as `gather` does, and apply the moves of a schedule; policy "belady" only.

        Schedules are applied one after the other in the order in which they were planned, from any
        threads; concurrent other gathers do not change the contents that they rely on. `missed` is
        what `start` returned for this schedule, if it was called. Raises ScheduleMismatch, and
        changes nothing, if the distinct ids are not the schedule's, or the contents not as planned.
        """
        engine = self._planned()
        ids, out = self._checked(ids, out)
        engine.apply(schedule, ids, out, missed)
        return out

    def start(self, schedule: CacheSchedule) -> PendingGather | None:
        """Start reading what a schedule will miss, before its turn; None if that does not help.

        It helps for a table on disk, whose rows never change and can be read ahead.
        """
        return self._planned().start(schedule)

    def _planned(self) -> HostCache:
        if self.policy != "belady":
            raise ValueError(f'schedules are for policy="belady", this cache has {self.policy!r}')
        assert isinstance(self._engine, HostCache)
        return self._engine

    def preload(self, ids: Tensor) -> None:
        """Admit rows before they are read; under "static" the only way to admit any.

        Reads only the rows that it admits, returns none and counts no hits or misses.

        Args:
            ids: int64 of any shape; the first distinct ones that fit are cached afterwards.
        """
        check_ids(ids)
        if ids.numel() > 0:
            self._engine.preload(ids.contiguous())

    def truncate(self, size: int) -> None:
        """Remove the rows from id `size` on; their ids must not be in use."""
        with self._change:
            self._take_back(size)

    def _take_back(self, size: int) -> None:
        with self._engine.changing():
            self.table.truncate(size)
            self._engine.truncate(size)

    def forget(self, first: int) -> None:
        """Free rows of the table; those in the cache are evicted by others."""
        self.table.forget(first)

    def close(self) -> None:
        """Close the table and release the cache."""
        with self._change, self._engine.changing():
            self._engine.truncate(0)
            self.table.close()

    def contents(self) -> Tensor:
        """Return the id in each slot, -1 for none, int64 `[capacity]` on the CPU."""
        return self._engine.snapshot().ids

    def snapshot(self) -> CacheSnapshot:
        """Return contents and ranking: 16 bytes a slot. Synchronizes with a GPU."""
        return self._engine.snapshot()

    def restore(self, snapshot: CacheSnapshot) -> None:
        """Restore the contents of a snapshot, for rows that the table still has.

        It may be of another cache of this policy and capacity, for example from a checkpoint. Rows
        that are not cached are read from the table, in one batch, with their present values.
        """
        if len(snapshot.ids) != self.capacity:
            raise ValueError(
                f"the snapshot is of a cache of {len(snapshot.ids)} rows, this one has "
                f"{self.capacity}"
            )
        with self._change:  # otherwise rows being truncated could be read
            self._engine.restore(snapshot)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Enclose a pass, such as an evaluation, and restore the contents afterwards."""
        snapshot = self.snapshot()
        try:
            yield
        finally:
            self.restore(snapshot)

    @property
    def counters(self) -> CacheCounters:
        """Counters since the last reset. Synchronizes with a GPU."""
        return self._engine.counters()

    def reset_counters(self) -> None:
        """Reset the counters."""
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
        table: Any table; change it only through the cache from here on.
        rows: Capacity in rows; 0, or more than the table has, is allowed.
        bytes: Limit for rows, index and order: a number or text such as "64MiB".
        share: Capacity as a share of the rows that the table has now.
        policy: "lru" evicts the least recently used row. "lfu" evicts the least frequently used,
            with counts halved after every 4 * rows admissions. "fifo" evicts the oldest. "static"
            never evicts; only `preload` admits rows. "belady": `apply` follows a planner, and
            `gather` admits nothing. These are for host memory, by default "lru". "clock", the only
            one on a GPU: in sets of 8 slots, evicts the next row not used since the hand passed.
        device: Where the cache is: None for host memory; "cuda", "cuda:1" or any
            `tgflow.cuda.device.Device` for a GPU's, whose gathers take and return tensors there.

    Raises:
        CudaError: If the GPU cannot be used; the message contains the cause.
        ValueError: If an argument is invalid, or the cache would be in host memory and the
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
    from tgflow.cuda.device import device_of
    from tgflow.graph.cache.device import DeviceCache

    if isinstance(device, str | torch.device):
        device = device_of(torch.device(device))
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
