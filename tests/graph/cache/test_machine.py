"""A cache under any sequence of calls, compared with the reference and the plain table."""

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from helpers.caches import (
    ReferenceCache,
    any_schedule,
    capacities,
    check,
    int64,
    made_cache,
    made_rows,
    policies,
)
from helpers.devices import needs_apart
from helpers.effort import tries

settings_of_machines = settings(max_examples=tries(60), stateful_step_count=25, deadline=None)


class CacheMachine(RuleBasedStateMachine):
    device = "cpu"

    @initialize(capacity=capacities, policy=policies, far=st.booleans())
    def start(self, capacity, policy, far):
        self.rows = made_rows(6)
        host_policy = policy if self.device == "cpu" else None
        self.cache = made_cache(capacity, host_policy, self.device, far=far, size=6)
        self.reference = ReferenceCache(capacity, policy)
        self.snapshots = []
        self.next_value = 1000.0

    def ids(self, data):
        return data.draw(st.lists(st.integers(-1, len(self.rows) - 1), max_size=12))

    def new_rows(self, size):
        self.next_value += size
        return torch.arange(self.next_value - size, self.next_value)[:, None].repeat(1, 3)

    @rule(data=st.data())
    def gather(self, data):
        ids = self.ids(data)
        found = self.cache.gather(int64(ids, self.device)).cpu()
        assert torch.equal(found, torch.cat([self.rows, torch.zeros(1, 3)])[ids])
        self.reference.gather(ids)

    @rule(data=st.data(), choice=st.lists(st.integers(-1, 8), max_size=5))
    def apply(self, data, choice):
        if self.cache.policy != "belady":
            return
        ids = self.ids(data)
        schedule = any_schedule(self.reference, ids, choice)
        found = self.cache.apply(schedule, int64(ids, self.device)).cpu()
        assert torch.equal(found, torch.cat([self.rows, torch.zeros(1, 3)])[ids])
        self.reference.apply(schedule, ids)

    @rule(data=st.data())
    def preload(self, data):
        ids = self.ids(data)
        self.cache.preload(int64(ids, self.device))
        self.reference.preload(ids)

    @rule(size=st.integers(0, 5))
    def append(self, size):
        rows = self.new_rows(size)
        assert self.cache.append(rows) == len(self.rows)
        self.reference.append(len(self.rows), size)
        self.rows = torch.cat([self.rows, rows])

    @rule(data=st.data())
    def truncate(self, data):
        size = data.draw(st.integers(0, len(self.rows)))
        self.cache.truncate(size)
        self.reference.truncate(size)
        self.rows = self.rows[:size]

    @rule()
    def snapshot(self):
        self.snapshots.append((self.cache.snapshot(), self.reference.snapshot()))

    @rule(data=st.data())
    def restore(self, data):
        if self.snapshots:
            ours, theirs = data.draw(st.sampled_from(self.snapshots))
            self.cache.restore(ours)
            self.reference.restore(theirs, len(self.rows))

    @rule()
    def reset_counters(self):
        self.cache.reset_counters()
        self.reference.counters = type(self.reference.counters)()

    @invariant()
    def same_as_the_reference(self):
        if hasattr(self, "cache"):
            self.check_contents()
            assert len(self.cache) == len(self.rows)

    def check_contents(self):
        check(self.cache, self.reference)


class EmulatedCacheMachine(CacheMachine):
    """CLOCK cache on a GPU: rows of the table, each existing row in at most one slot."""

    device = "apart"

    def check_contents(self):
        contents = self.cache.contents()
        held = contents[contents >= 0]
        assert len(held.unique()) == len(held)
        assert (held < len(self.rows)).all()


TestCache = CacheMachine.TestCase
TestCache.settings = settings_of_machines
TestEmulatedCache = needs_apart[0](EmulatedCacheMachine.TestCase)
TestEmulatedCache.settings = settings(settings_of_machines, max_examples=tries(25))
