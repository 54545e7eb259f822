"""Generated caches, operations on them, and a reference cache: slow and obvious."""

from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st

from helpers.devices import opened, place_of
from tgflow.graph.cache import cached
from tgflow.graph.cache.contents import POLICIES, CacheCounters, CacheSchedule, Policy
from tgflow.graph.tables import FeatureTable


@dataclass
class Held:
    """Contents of a slot."""

    id: int
    key: tuple[int, int, int]
    """(count, batch, rank): the smallest goes first. The count is 0 except under lfu. In a batch
    the rows found rank before the rows admitted."""


@dataclass
class ReferenceCache:
    """The contents of a cache of `capacity` rows, gather by gather.

    A gather takes the distinct ids in order of first appearance and looks all of them up. Those
    found are used; of the others the first are admitted, as many as there are slots that this
    gather found nothing in: into free slots, lowest first, then over the smallest keys.
    """

    capacity: int
    policy: Policy = "lru"
    slots: list[Held | None] = field(init=False)
    counters: CacheCounters = field(default_factory=CacheCounters)
    batch: int = 0
    admissions: int = 0
    """Uses since the start; lfu halves all counts whenever they pass a multiple of the period."""

    def __post_init__(self):
        self.slots = [None] * self.capacity

    def contents(self):
        """Return the id in each slot, -1 for none."""
        return [-1 if held is None else held.id for held in self.slots]

    def slot_of(self, row):
        """Return the slot of an id."""
        return next((s for s, held in enumerate(self.slots) if held and held.id == row), None)

    def gather(self, ids):
        """Record a gather."""
        wanted = distinct(ids)
        hits, misses = self._look_up(wanted)
        admits = self.policy not in ("static", "belady")
        admitted = self._admit(wanted, hits, misses) if admits else 0
        self.counters.hits += len(hits)
        self.counters.misses += len(misses)
        self.counters.bypassed += len(misses) - admitted

    def preload(self, ids):
        """Record rows admitted without a gather."""
        wanted = distinct(ids)
        hits, misses = self._look_up(wanted)
        self.counters.preloaded += self._admit(wanted, hits, misses)

    def append(self, first, num):
        """Record rows appended to the table; the last of them are admitted."""
        if self.policy in ("static", "belady"):
            return
        wanted = list(range(first, first + num))[max(num - self.capacity, 0) :]
        self.batch += 1
        self.counters.written += self._admit(wanted, [], wanted)

    def apply(self, schedule, ids):
        """Apply a schedule."""
        wanted, found, admit = (
            part.tolist() for part in (schedule.ids, schedule.hit, schedule.admit)
        )
        assert wanted == distinct(ids)
        assert [-1 if (s := self.slot_of(row)) is None else s for row in wanted] == found
        self.batch += 1
        for row, slot in zip(wanted, found, strict=True):
            self.counters.hits += slot >= 0
            self.counters.misses += slot < 0
            self.counters.bypassed += slot < 0 and admit[wanted.index(row)] < 0
        for rank, (row, slot) in enumerate(zip(wanted, admit, strict=True)):
            if slot >= 0:
                self._put(slot, row, rank)

    def truncate(self, size):
        """Drop the ids from `size` on."""
        self.slots = [held if held and held.id < size else None for held in self.slots]

    def snapshot(self):
        """Return the contents and their ranking."""
        return [held and Held(held.id, held.key) for held in self.slots]

    def restore(self, slots, size):
        """Restore the rows of a snapshot that the table still has."""
        before = self.contents()
        self.slots = [held and Held(held.id, held.key) for held in slots]
        self.truncate(size)
        now = self.contents()
        changed = [row for old, row in zip(before, now, strict=True) if row not in (-1, old)]
        self.counters.preloaded += len(changed)

    def _look_up(self, wanted):
        """Return the slots of the cached ids, and the missing ids."""
        self.batch += 1
        hits, misses = [], []
        for rank, row in enumerate(wanted):
            slot = self.slot_of(row)
            if slot is None:
                misses.append(row)
                continue
            hits.append(slot)
            held = self.slots[slot]
            assert held is not None
            if self.policy == "lru":
                held.key = (0, self.batch, rank)
            if self.policy == "lfu":
                held.key = (min(held.key[0] + 1, 255), self.batch, rank)
        return hits, misses

    def _admit(self, wanted, hits, misses):
        """Put the first misses into slots outside `hits`; return how many."""
        others = [slot for slot in range(self.capacity) if slot not in hits]
        others.sort(key=lambda slot: (0, slot) if (held := self.slots[slot]) is None else held.key)
        free = [slot for slot in others if self.slots[slot] is None]
        victims = free + [slot for slot in others if self.slots[slot] is not None]
        before = self.admissions
        for row, slot in zip(misses, victims, strict=False):
            self._put(slot, row, len(wanted) + wanted.index(row))
        if self.policy == "lfu":
            period = max(4 * self.capacity, 1)
            if self.admissions // period > before // period:
                self._halve()
        return self.admissions - before

    def _put(self, slot, row, rank):
        self.counters.evicted += self.slots[slot] is not None
        self.counters.admitted += 1
        self.admissions += 1
        self.slots[slot] = Held(row, (int(self.policy == "lfu"), self.batch, rank))

    def _halve(self):
        for held in filter(None, self.slots):
            count, batch, rank = held.key
            held.key = (count // 2, batch, rank)


def distinct(ids):
    """Return the distinct non-negative ids in order of first appearance."""
    return list(dict.fromkeys(row for row in ids if row >= 0))


SIZE = 12
"""Rows of generated tables: few, so that every case occurs often."""

capacities = st.sampled_from((0, 1, 2, 3, 5, 8, SIZE, 40))
policies = st.sampled_from(POLICIES)


def made_rows(size, dim=3, dtype=torch.float32):
    """Distinct rows."""
    return (torch.arange(size * dim) + 1).to(dtype).reshape(size, dim)


class FarTable(FeatureTable):
    """A table that cannot be read in place: its cache must request rows."""

    fails = False

    @property
    def placement(self):
        return "far"

    def gather(self, ids, out=None):
        if self.fails:
            raise OSError("the disk is gone")
        return super().gather(ids, out)


def made_table(rows, *, far=False, device=None):
    """A table in host memory or readable in place by `device`; far: not readable in place."""
    if far or device is None:
        table = (FarTable if far else FeatureTable)(rows.shape[1], rows.dtype)
    else:
        table = FeatureTable(rows.shape[1], rows.dtype, "uva", device=device)
    table.append(rows)
    return table


def made_cache(capacity, policy=None, device="cpu", *, far=False, size=SIZE, dim=3):
    where = None if device == "cpu" else opened(device)
    table = made_table(made_rows(size, dim), far=far, device=where)
    return cached(table, rows=capacity, policy=policy, device=where)


def int64(values, device="cpu"):
    return torch.tensor(values, dtype=torch.int64, device=place_of(device))


def check(cache, reference):
    """Assert that contents and counters match the reference."""
    assert cache.contents().tolist() == reference.contents()
    counters = cache.counters
    counters.row_bytes = 0
    assert counters == reference.counters


def any_schedule(reference, ids, choice):
    """A schedule valid for the contents: `choice` selects the slots of misses."""
    wanted = distinct(ids)
    hit = [-1 if (slot := reference.slot_of(row)) is None else slot for row in wanted]
    admit, taken = [], set()
    for rank, slot in enumerate(hit):
        target = choice[rank % len(choice)] if choice else -1
        goes = slot < 0 and 0 <= target < reference.capacity and target not in taken
        admit.append(target if goes else -1)
        taken.add(target)
    return CacheSchedule(*(torch.tensor(part, dtype=torch.int64) for part in (wanted, hit, admit)))
