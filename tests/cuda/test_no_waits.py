"""Appending in the steady state: the host waits for nothing, and what it counts on is enough."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.effort import cases
from helpers.emulator.device import EmulatedDevice
from helpers.hubs import hub_events
from helpers.strategies import event_lists
from tgflow.cuda import insertion
from tgflow.cuda.store import DeviceStore
from tgflow.events import EventBatch

WRITER = 1000


def insert(store: DeviceStore, events: EventBatch) -> None:
    store.reserve(events.src, events.dst, events.t)
    store.commit(store.position + len(events))


@pytest.mark.parametrize("small_pairs", [4096, 0])
def test_appending_waits_for_nobody(monkeypatch, small_pairs):
    """Chunks are added, directories grow, memory is given up and sorted in meanwhile."""
    monkeypatch.setattr(insertion, "SMALL_PAIRS", small_pairs)
    gpu = EmulatedDevice()
    store = DeviceStore(gpu, directed=False)
    events = hub_events(30_000, 400, seed=2)
    for start in range(0, len(events), 300):
        insert(store, events[start : start + 300])
    assert gpu.synchronized == 0
    assert len(store._free._items) > 0


def test_appending_goes_on_while_the_device_is_behind():
    """Totals that have not come are bounded; with too many of them the oldest is waited for."""
    gpu = EmulatedDevice(busy={WRITER})
    store = DeviceStore(gpu, directed=False)
    events = hub_events(3_200, 400, seed=2)
    for start in range(0, 1_200, 20):
        insert(store, events[start : start + 20])
    assert gpu.synchronized == 0
    at_most = store.chunks.cursor
    for start in range(1_200, len(events), 20):
        insert(store, events[start : start + 20])
    assert gpu.synchronized == 1
    store._begin()
    assert store.chunks.cursor < at_most
    assert store.stats().num_entries == 2 * 3_200 - int((events.src == events.dst).sum())


def test_a_batch_that_could_need_much_more_than_is_there_is_waited_for():
    gpu = EmulatedDevice()
    store = DeviceStore(gpu, directed=False, budget=4096)
    insert(store, hub_events(1_000, 50, seed=1))
    assert gpu.synchronized == 1


@given(events=event_lists(), cuts=st.lists(st.integers(0, 40), max_size=8), directed=st.booleans())
def test_no_batch_takes_more_than_it_may(events, cuts, directed):
    check_bounds(events, cuts, directed)


@pytest.mark.parametrize("size", cases([10, 300, 6_000], [300]))
def test_no_batch_of_a_long_history_takes_more_than_it_may(size):
    check_bounds(hub_events(24_000, 50, seed=size), range(0, 24_000, size), directed=False)


def check_bounds(events: EventBatch, cuts, directed: bool) -> None:
    """Of entries, units and blocks, known from the batches before."""
    store = DeviceStore(EmulatedDevice(), directed)
    for start, stop in pairwise(sorted({0, len(events), *(min(c, len(events)) for c in cuts)})):
        part = events[start:stop]
        store.reserve(part.src, part.dst, part.t)
        store._collect()
        planned = store._pending
        if planned is None:
            continue
        most = store._unread.most(planned.plan.num_pairs, store.chunks.max_capacity)
        totals = planned.totals
        assert totals.entries <= most.entries
        assert totals.rooms <= most.rooms
        assert totals.blocks <= most.blocks
        store.commit(store.position + len(part))


def test_columns_are_free_when_append_returns():
    store = DeviceStore(EmulatedDevice(), directed=True)
    src, dst, t = torch.zeros(3, dtype=torch.int64), torch.arange(1, 4), torch.arange(3)
    store.reserve(src, dst, t)
    for column in (src, dst, t):
        column.fill_(7)
    store.commit(3)
    assert store._num_nodes == 1
    assert store.stats().device.num_blocks == 1
