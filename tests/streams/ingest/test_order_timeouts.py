"""Partitions that fall silent, and events that wait for order, with a clock of polls."""

import random
from pathlib import Path

import pytest

from helpers.effort import cases
from helpers.ingestion import (
    ListSource,
    MemoryDeadLetters,
    MemoryLog,
    Row,
    Ticking,
    World,
    events_of,
    made_partitions,
)
from tgflow.checkpoint.durable.log import LogPosition
from tgflow.graph.ids import NodeIds
from tgflow.streams.errors import LateEvent
from tgflow.streams.ingest import tail
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.ingest.ingest_state import IngestState
from tgflow.streams.ingest.tail import LogTail
from tgflow.streams.rows.row_batch import RowBatch

TIMEOUTS = OrderConfig(idle_timeout=5.0, order_timeout=1.0)


def rows_at(*times):
    return [Row(i, 99, t) for i, t in enumerate(times)]


class Live(Ticking):
    """A topic: `arrived` rows of each partition are there; `at` acts at a second."""

    def __init__(self, partitions, arrived=None, at=None, **options):
        arrived = {p: len(rows) for p, rows in partitions.items()} | (arrived or {})
        super().__init__(partitions, silent=arrived, poll_sizes=(50,), **options)
        self.at = at or {}

    def poll(self, wanted, timeout):
        self.at.get(self.seconds, lambda: None)()
        return super().poll(wanted, timeout)

    def arrive(self, partition, number):
        return lambda: self.silent.update({partition: number})


def released(source, config=TIMEOUTS, seconds=60, **options):
    """Return the events of a source with the second at which each was released."""
    ingest = Ingest(
        source,
        config,
        log=MemoryLog(),
        clock=source.clock,
        stop=lambda: source.seconds >= seconds,
        **options,
    )
    found = [(t, source.seconds) for events in ingest for t in events.t.tolist()]
    return found, ingest


def test_all_events_are_released_although_partitions_stay_empty():
    source = Live({0: rows_at(*range(100)), 1: [], 2: [], 3: []})
    found, ingest = released(source)
    assert [t for t, _ in found] == [*range(100)]
    assert found[-1][1] <= 4
    assert ingest.report()["num_buffered"] == 0


def test_busy_partition_waits_for_a_silent_one_until_it_is_idle():
    rows = rows_at(*range(0, 1000, 10))
    source = Live({0: rows, 1: rows_at(5)}, {0: 1})
    source.at = {second: source.arrive(0, second) for second in range(1, 50)}
    found, _ = released(source)
    seconds = dict(found)
    assert seconds[0] == seconds[5] == 2  # both were silent for the order timeout
    assert seconds[10] == seconds[20] == seconds[30] == 6, "partition 1 delays them for 5 seconds"
    assert all(seconds[t] == t / 10 + 3 for t in range(30, 480, 10))


def test_clock_of_silence_stands_still_in_an_outage():
    source = Live({0: rows_at(*range(0, 1000, 10)), 1: rows_at(5)}, {0: 1})
    source.at = {second: source.arrive(0, second) for second in range(1, 50)}
    source.at[3] = lambda: vars(source).update(is_out=True)
    source.at[40] = lambda: vars(source).update(is_out=False)
    found, _ = released(source)
    assert [t for t, second in found if 3 < second < 43] == []
    assert {10, 20, 380} <= {t for t, _ in found}


def test_clock_of_silence_stands_still_while_events_are_learned():
    source = Live({0: rows_at(*range(0, 1000, 10)), 1: rows_at(5)}, {0: 1})
    source.at = {second: source.arrive(0, second) for second in range(1, 50)}
    ingest = Ingest(source, TIMEOUTS, log=MemoryLog(), clock=source.clock)
    events = iter(ingest)
    assert next(events).t.tolist() == [0, 5]
    polls = len(source.polled)
    source.seconds += 1000  # a long step
    source.at = {}
    source.arrive(0, 20)()
    assert min(next(events).t.tolist()) == 10
    assert len(source.polled) - polls == 2, "not before order_timeout"


def test_partition_that_has_more_is_no_longer_idle():
    source = Live({0: rows_at(1, 20, 30), 1: rows_at(2, 15)}, {0: 1, 1: 1})

    def arrive():
        source.silent |= {0: 3, 1: 2}
        source._random.sample = lambda ready, number: [0]  # partition 1 has lag

    def serve():
        source._random.sample = lambda ready, number: ready

    source.at = {20: arrive, 22: serve}
    found, ingest = released(source)
    assert [t for t, _ in found] == [1, 2, 15, 20, 30]
    assert ingest.report()["counts"]["late"] == 0


def test_nothing_is_forced_while_a_partition_catches_up():
    source = Live({0: rows_at(10, 20), 1: rows_at(*range(30))}, {1: 30})
    source._random.sample = lambda ready, number: [0] if 0 in ready else []
    source.at[10] = lambda: setattr(source._random, "sample", lambda ready, number: ready)
    found, ingest = released(source)
    assert min(second for _, second in found) >= 10
    assert [t for t, _ in found] == sorted([10, 20, *range(30)])
    assert ingest.report()["counts"]["late"] == 0


@pytest.mark.parametrize("late", ["dead_letter", "drop", "error"])
def test_events_before_a_forced_watermark_are_late_and_equal_times_stand_behind(late):
    rows = [Row(i, 99, t) for i, t in enumerate([50, 80, 70, 80, 81])]
    config = OrderConfig(allowed_lateness=30, late=late, order_timeout=1.0)
    log, letters = MemoryLog(), MemoryDeadLetters()
    source = Live({0: rows, 1: rows_at(80)}, {0: 2})
    source.at = {10: source.arrive(0, 5)}
    stop = lambda: source.seconds >= 30  # noqa: E731
    ingest = Ingest(source, config, log=log, letters=letters, clock=source.clock, stop=stop)
    if late == "error":
        with pytest.raises(LateEvent, match="t is 70, 10 ticks before the watermark 80"):
            list(ingest)
        return
    events = events_of(ingest, ingest.ids)
    assert [(src, t) for src, _, t, _, _ in events] == [(0, 50), (1, 80), (0, 80), (3, 80), (4, 81)]
    assert letters.places() == ([(0, 2)] if late == "dead_letter" else [])
    replay = Ingest(Live({0: rows, 1: []}), config, log=log, stop=lambda: True)
    assert events_of(replay, replay.ids) == events


def test_timeouts_require_a_log():
    for name in ("idle_timeout", "order_timeout"):
        with pytest.raises(ValueError, match="require the log"):
            Ingest(ListSource({0: []}), OrderConfig(**{name: "1s"}))


class Broker:
    """Partitions that grow while they are read; outlives the processes that read them."""

    def __init__(self, rng):
        self.rng, self.seconds, self.is_out = rng, 0.0, False
        self.rows = made_partitions(rng, num_partitions=rng.randint(1, 4), spread=3)
        self.there = dict.fromkeys(self.rows, 0)

    def pass_time(self):
        rng = self.rng
        self.seconds += rng.choice([0.1, 0.5, 3.0])
        self.is_out = rng.random() < (0.8 if self.is_out else 0.1)
        for p in rng.sample([*self.rows], rng.randint(0, len(self.rows))):
            more = rng.choice([0, 0, 1, 5]) if self.seconds < 80 else 100
            self.there[p] = min(len(self.rows[p]), self.there[p] + more)

    def source(self):
        broker = self

        class Source(ListSource):
            def poll(self, wanted, timeout) -> list[RowBatch]:
                broker.pass_time()
                self.is_out = broker.is_out
                return super().poll(wanted, timeout)

        sizes = self.rng.choice([(1, 2), (1, 7), (50,)])
        source = Source(self.rows, seed=self.rng.random(), poll_sizes=sizes)
        source.silent = self.there
        return source

    def is_read(self, ingest):
        total = sum(map(len, self.rows.values()))
        return ingest.report()["counts"]["read"] == total and not ingest.num_buffered


@pytest.mark.parametrize("seed", cases(range(300), range(12)))
def test_what_has_left_once_is_repeated_after_kills_and_losses_of_power(monkeypatch, seed):
    rng = random.Random(seed)
    broker, seen, forced = Broker(rng), [], 0
    config = OrderConfig(
        allowed_lateness=rng.choice([None, 2, 10]),
        idle_timeout=rng.choice([2.0, 20.0]),
        order_timeout=rng.choice([1.0, 4.0]),
        buffer_events=rng.choice([20, 10**6]),
    )
    world = World(config, MemoryLog())
    for crashes in range(1000):
        rate = 0.1 if crashes < 30 else 0.0
        ingest = None
        stop = lambda: ingest is not None and broker.is_read(ingest)  # noqa: B023, E731
        events = world.start(broker.source(), clock=lambda: broker.seconds, stop=stop)
        ingest = world.ingest
        for batch in events:
            world.learn(batch)
            num = len(world.learned)
            assert world.learned[: len(seen)] == seen[:num]
            seen = max(seen, [*world.learned], key=len)
            if rng.random() < 0.1:
                first = 0 if world.checkpoint is None else world.checkpoint[0]
                world.save(rng.randint(first, num))
            if rng.random() < rate:
                world.crash(power_fails=rng.random() < 0.5)
                break
        else:
            break
    forced += sum('"kind": "forced"' in footer for _, footer in world.log.frames)
    counts = world.ingest.report()["counts"]
    times = [event[2] for event in world.learned]
    assert times == sorted(times)
    assert counts["accepted"] == len(world.learned)
    source = ListSource(broker.rows, silent=dict.fromkeys(broker.rows, 0))
    replay = Ingest(source, config, log=world.log, stop=lambda: True)
    assert events_of(replay, replay.ids) == world.learned
    monkeypatch.setattr(tail, "read_written", lambda directory, start: world.log.read(start))
    follower = LogTail(Path(), IngestState(log=LogPosition(0, 0)), NodeIds(), 0)
    follower.limit = len(world.learned)
    assert not follower.limit or events_of(follower, follower.ids) == world.learned
    assert forced or not world.learned
