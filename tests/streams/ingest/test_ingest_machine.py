"""Runs that are fed, polled, saved, killed and restored in any order, beside a short model."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from helpers.effort import tries
from helpers.ingest_world import MemoryLog, World, as_event
from helpers.order_reference import in_order, judge_rows
from helpers.partitioned import ListSource, Row
from tgflow.streams.ingest.config import OrderConfig

PARTITIONS = st.integers(0, 2)
SIZES = st.sampled_from([(1,), (1, 5), (100,)])
CONFIG = OrderConfig(
    allowed_lateness=15, max_time_jump=20, dedup_window=6, buffer_events=30, time_max=200
)
SHARE = 10


class IngestMachine(RuleBasedStateMachine):
    log_type = None

    def __init__(self):
        super().__init__()
        self.rows = {p: [] for p in range(3)}
        self.times = dict.fromkeys(self.rows, 0)
        self.add(0, 0)
        self.world = World(CONFIG, self.log_type and self.log_type())
        self.is_running = False

    @rule(partition=PARTITIONS, steps=st.lists(st.integers(-6, 8), min_size=1, max_size=12))
    def feed(self, partition, steps):
        for step in steps:
            self.times[partition] += max(step, 1)
            self.add(partition, self.times[partition] + min(step, 0))

    @rule(partition=PARTITIONS, by=st.integers(5, 60))
    def feed_a_late_one(self, partition, by):
        self.add(partition, self.times[partition] - by)

    @rule(partition=PARTITIONS, by=st.sampled_from([21, 1000]))
    def feed_one_too_early(self, partition, by):
        self.add(partition, self.times[partition] + by)

    @rule(partition=PARTITIONS)
    def feed_a_bad_one(self, partition):
        self.add(partition, 0, bad="syntax")

    @rule(partition=PARTITIONS)
    def feed_the_last_one_again(self, partition):
        self.rows[partition] += self.rows[partition][-1:]

    @rule(polls=st.integers(1, 12), sizes=SIZES, seed=st.integers(0, 99))
    def restore_and_run(self, polls, sizes, seed):
        ends = {p: len(rows) for p, rows in self.rows.items()}
        source = ListSource(self.rows, seed=seed, poll_sizes=sizes, silent=ends)
        for events in self.world.start(source, stop=lambda: len(source.polled) >= polls):
            self.world.learn(events)
        self.is_running = True

    @precondition(lambda self: self.is_running)
    @rule(share=st.floats(0, 1))
    def checkpoint(self, share):
        first = 0 if self.world.checkpoint is None else self.world.checkpoint[0]
        self.world.save(first + round(share * (len(self.world.learned) - first)))

    @precondition(lambda self: self.is_running)
    @rule(power_fails=st.booleans())
    def crash(self, power_fails):
        self.world.crash(power_fails)
        self.is_running = False

    @invariant()
    def what_was_learned_begins_the_sequence(self):
        learned = self.world.learned
        assert learned == self.expected()[: len(learned)]

    def teardown(self):
        for events in self.world.start(ListSource(self.rows)):
            self.world.learn(events)
        assert self.world.learned == self.expected()
        judged = {p: judge_rows(rows, CONFIG, SHARE) for p, rows in self.rows.items()}
        places = [(p, seq) for p, j in judged.items() for seq in (*j.late, *j.bad)]
        assert sorted(self.world.letters.places()) == sorted(places)
        forced = self.world.ingest.report()["counts"]["forced"]
        assert forced == sum(j.forced for j in judged.values())

    def expected(self):
        judged = {p: judge_rows(rows, CONFIG, SHARE) for p, rows in self.rows.items()}
        rows = in_order(self.rows, {p: j.accepted for p, j in judged.items()})
        return [as_event(row) for row in rows]

    def add(self, partition, t, bad=None):
        number = len(self.rows[partition])
        self.rows[partition].append(Row(partition, number, t, event_id=number, bad=bad))


class MachineWithLog(IngestMachine):
    log_type = MemoryLog


@pytest.mark.parametrize("machine", [IngestMachine, MachineWithLog])
def test_any_order_of_faults_gives_the_model_s_sequence(machine):
    case = machine.TestCase
    case.settings = settings(max_examples=tries(40), stateful_step_count=25, deadline=None)
    case("runTest").runTest()
