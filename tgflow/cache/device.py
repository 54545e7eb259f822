"""A cache in a GPU's memory: index, order and rows are there, and no gather waits for the host."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from tgflow.cache._native import ScheduleMismatch
from tgflow.cache.counters import CacheCounters
from tgflow.cache.device_index import CacheBatch, CacheIndex, LookupPurpose, TableSize
from tgflow.cache.engine import CachedSource, CacheSnapshot
from tgflow.cache.policy import POLICIES, Policy
from tgflow.cache.schedule import CacheSchedule
from tgflow.cuda.device import Device, StreamEvent
from tgflow.tables.pending_gather import PendingGather

_IN_REACH = ("device", "uva")
"""Places whose rows kernels read."""
_NOT_ADMITTED = ("static", "belady")
_USES_SHIFT = 48


class DeviceCache:
    """`capacity` rows of `table` in a GPU's memory; the contents are those of a `HostCache`.

    Gathers take and return tensors on the GPU. They do not synchronize where kernels can read
    the table; else the misses are listed, read by the table in one batch and copied, which does.
    Applying a schedule, preloading such a table, snapshots, restoring and counters synchronize.
    Gathers on several streams wait for each other on the device.

    A gather from a table that kernels can read may be captured in a CUDA graph, after one that was
    not: no launch depends on what is asked for, nor on what was asked before. Its replays are
    gathers like others, in order with these if they run on the same stream, and see the rows that
    the table has by then, wherever a growing table has put them.
    """

    def __init__(self, table: CachedSource, capacity: int, policy: Policy, gpu: Device) -> None:
        self._table = table
        self.capacity = capacity
        self._policy = policy
        self._gpu = gpu
        row_bytes = table.dim * table.dtype.itemsize
        self._index = CacheIndex(capacity, row_bytes, POLICIES.index(policy), gpu)
        self._lock = threading.RLock()
        self._turns = _Turns(gpu.current_stream())
        finalizer = weakref.finalize(self, self._turns.wait, gpu)
        finalizer.atexit = False  # the process's end gives all back

    @property
    def gpu(self) -> Device:
        """The GPU that it is on."""
        return self._gpu

    @property
    def nbytes(self) -> int:
        """Bytes of device memory held: rows, index and order."""
        return self._index.nbytes

    def gather(self, ids: Tensor, out: Tensor) -> None:
        """Fill `out`, on the current stream."""
        if ids.device != self._gpu.device:
            there = self._empty(ids)
            self.gather(ids.to(there.device), there)
            out.copy_(there)
            return
        admits = self._policy not in _NOT_ADMITTED
        with self._turn():
            batch = self._index.look_up(ids, self._size())
            batch.count()
            with self._chosen(batch) if admits else nullcontext():
                self._read_misses(batch, out)
            self._index.admit(batch, admits)
            self._index.copy(batch, out)

    def start(self, schedule: CacheSchedule) -> None:
        """Read nothing ahead: only `apply` knows the slots on the device that are free."""

    def apply(
        self, schedule: CacheSchedule, ids: Tensor, out: Tensor, missed: PendingGather | None = None
    ) -> None:
        """Fill `out` and make the schedule's moves; synchronizes, to compare what is planned."""
        assert missed is None, "nothing was started"
        if ids.device != self._gpu.device:
            there = self._empty(ids)
            self.apply(schedule, ids.to(there.device), there)
            out.copy_(there)
            return
        with self._turn():
            batch = self._index.look_up(ids, self._size())
            admit = _matched(batch, schedule)
            self._read_misses(batch, out)
            self._index.copy(batch, out, puts=False)
            batch.admit.copy_(admit)
            self._index.place(batch)
            self._index.copy(batch, out, reads=False)

    def preload(self, ids: Tensor) -> None:
        """Read what is not there and fits."""
        ids = ids.to(self._gpu.device)
        out = self._empty(ids)
        with self._turn():
            batch = self._index.look_up(ids, self._size(), LookupPurpose.PRELOAD)
            batch.count()
            batch.ask_for_admitted_only()
            with self._chosen(batch):
                self._read_misses(batch, out)
            self._index.admit(batch, True)
            self._index.copy(batch, out, reads=False)

    def append(self, first: int, rows: Tensor) -> None:
        """Admit the last of the rows that the table has just been given, id `first` and on."""
        num = min(len(rows), self.capacity)
        if num == 0 or self._policy in _NOT_ADMITTED:
            return
        device, end = self._gpu.device, first + len(rows)
        with self._turn():
            ids = torch.arange(end - num, end, device=device)
            batch = self._index.look_up(ids, self._size(), LookupPurpose.APPEND)
            batch.count()
            batch.choose_room()
            self._index.admit(batch, True)
            there = rows[len(rows) - num :].detach().to(device).contiguous()
            self._index.copy(batch, there, reads=False)

    def _size(self) -> TableSize:
        view = self._table.view
        return TableSize(len(self._table), 0 if view is None else view.address)

    @contextmanager
    def _chosen(self, batch: CacheBatch) -> Iterator[None]:
        """Choose who makes room, and put all in order again if the rows do not come."""
        batch.choose_room()
        try:
            yield
        except BaseException:
            self._index.put_in_order()
            raise

    def _read_misses(self, batch: CacheBatch, out: Tensor) -> None:
        """Have the table write the rows that are missing to where they belong."""
        if self._table.placement in _IN_REACH:
            self._table.gather(batch.miss.view(batch.ids.shape), out)
            return
        asked = batch.miss.cpu()
        where = asked.ge(0).nonzero().view(-1)
        shape = (len(where), self._table.dim)
        rows = torch.empty(shape, dtype=out.dtype, pin_memory=out.is_cuda)
        self._table.gather(asked[where], rows)
        there = rows.to(out.device, non_blocking=True)
        out.view(-1, self._table.dim).index_copy_(0, where.to(out.device), there)

    def _empty(self, ids: Tensor) -> Tensor:
        shape, device = (*ids.shape, self._table.dim), self._gpu.device
        return torch.empty(shape, dtype=self._table.dtype, device=device)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Enclose launches: behind those of the turn before, on whatever stream they were."""
        with self._lock:
            if self._gpu.is_capturing():
                yield
                return
            turns, stream = self._turns, self._gpu.current_stream()
            if stream != turns.stream and turns.last is not None:
                self._gpu.wait_event(turns.last)
            try:
                yield
            finally:
                turns.stream, turns.last = stream, self._gpu.record_event()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Keep gathers from being launched."""
        with self._turn():
            yield

    def write(self, ids: Tensor, rows: Tensor) -> None:
        """Overwrite those of the rows that are held."""
        device = self._gpu.device
        if len(ids) > 0:
            self._index.write(ids.to(device), rows.detach().to(device).contiguous())

    def truncate(self, size: int) -> None:
        """Forget the ids from `size` on."""
        self._index.set_contents(self._index.id.where(self._index.id < size, -1))

    def snapshot(self) -> CacheSnapshot:
        """Return what is held. Synchronizes."""
        with self._turn():
            index = self._index
            keys = index.came if self._policy in ("fifo", *_NOT_ADMITTED) else index.used
            if self._policy == "lfu":
                keys = keys + (index.uses.long() << _USES_SHIFT)
            keys = keys.where(index.id >= 0, 0)
            return CacheSnapshot(index.id.to("cpu", copy=True), keys.to("cpu", copy=True))

    def restore(self, snapshot: CacheSnapshot) -> None:
        """Hold that again; reads from the table what is no longer where it was. Synchronizes."""
        with self._turn():
            index = self._index
            ids = snapshot.ids.where(snapshot.ids < len(self._table), -1)
            slots = ((ids >= 0) & (ids != index.id.cpu())).nonzero().view(-1)
            rows = self._table.gather(ids[slots]).to(self._gpu.device)
            keys = snapshot.keys.to(self._gpu.device)
            index.used.copy_(keys & (1 << _USES_SHIFT) - 1)
            index.came.copy_(index.used)
            index.uses.copy_(keys >> _USES_SHIFT)
            index.pass_positions(index.used)
            index.set_contents(ids.to(self._gpu.device))
            index.put(slots.to(self._gpu.device), rows)
            index.counts[5] += len(slots)

    def counters(self) -> CacheCounters:
        """Return what was counted since the last reset. Synchronizes."""
        with self._turn():
            counters = CacheCounters(*self._index.counts[:7].tolist())
        counters.row_bytes = self._index.row_bytes
        return counters

    def reset_counters(self) -> None:
        """Count from 0."""
        with self._turn():
            self._index.counts[:7] = 0


class _Turns:
    """Who had the last turn at a cache: each waits for the one before."""

    def __init__(self, stream: int) -> None:
        self.made_on = self.stream = stream
        self.last: StreamEvent | None = None

    def wait(self, gpu: Device) -> None:
        """Have the host wait for it: memory is free at once for the stream that it was made on."""
        if self.stream != self.made_on and self.last is not None and not self.last.query():
            gpu.synchronize()


def _matched(batch: CacheBatch, schedule: CacheSchedule) -> Tensor:
    """Return the slot that each id of the batch goes to, int32, or raise ScheduleMismatch."""
    first = batch.first().cpu()
    asked, found = batch.ids.cpu().view(-1)[first], batch.source.cpu()[first].clamp(min=-1)
    hit, goes = schedule.hit.to(torch.int32), schedule.admit.to(torch.int32)
    if not torch.equal(asked, schedule.ids):
        raise ScheduleMismatch("the distinct ids asked for are not the ones that were planned")
    if not torch.equal(found, hit):
        row = int((found != hit).nonzero()[0])
        raise ScheduleMismatch(
            f"row {row} (id {int(asked[row])}) is in slot {int(found[row])}, "
            f"not in {int(hit[row])} as planned"
        )
    taken = goes[goes >= 0].tolist()
    if len(set(taken)) < len(taken) or bool((goes[hit >= 0] >= 0).any()):
        raise ScheduleMismatch("two rows were planned for one slot")
    admit = torch.full((batch.ids.numel(),), -1, dtype=torch.int32)
    admit[first] = goes
    return admit.to(batch.ids.device)
